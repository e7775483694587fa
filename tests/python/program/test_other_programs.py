"""mezzo's files, read by an older transformers and by this one: the scores equal the scores of `mezzo
predict`."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from families import FAMILIES
from support import mezzo
from test_family_training import write_tokenizer
from test_training import WORDS

OLDER = Path(sys.prefix) / "transformers4"  # scripts/setup.sh installs it
NAMES = ["bert", "bert, one type", "roberta, one type", "distilbert", "electra", "deberta-v3", "modernbert"]
TEXTS = [" ".join(WORDS[i:i + 5]) for i in range(6)]
SCORES = """
import json, sys, transformers
assert transformers.__version__.startswith(sys.argv[1]), transformers.__version__
def scores(folder):
    pipe = transformers.pipeline("text-classification", model=folder, top_k=None, function_to_apply="sigmoid" if "several" in folder else None)
    return [{item["label"]: item["score"] for item in found} for found in pipe(json.loads(sys.argv[2]))]
print("scores:", json.dumps({folder: scores(folder) for folder in sys.argv[3:]}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Trained by mezzo: each family with --calibrate, and a model of several labels, with their scores."""
    rows = tmp_path_factory.mktemp("rows")
    (rows / "one.json").write_text(json.dumps([[text, "abc"[i % 3]] for i, text in enumerate(TEXTS * 4)]))
    (rows / "several.json").write_text(json.dumps([[text, ["a", "b"][i % 3:]] for i, text in enumerate(TEXTS * 4)]))
    scores = {}
    for name in [*NAMES, "several"]:
        start = tmp_path_factory.mktemp("start")
        model = FAMILIES.get(name, FAMILIES["bert"]).model(start, num_hidden_layers=1)
        write_tokenizer(start, model.config.pad_token_id)
        out = tmp_path_factory.mktemp("several" if name == "several" else "one") / "out"
        data = rows / ("several.json" if name == "several" else "one.json")
        task = ["--task", "multi_label_classification"] if name == "several" else ["--calibrate"]
        mezzo("train", "--model", start, "--new-head", "--train", data, "--dev", data, "--max-steps", 20, "--max-length", 16, "--learning-rate", 1e-3,
              "--output", out, *task)
        lines = mezzo("predict", "--model", out, "--precision", "fp32", stdin="\n".join(TEXTS) + "\n").stdout.splitlines()
        scores[str(out)] = [json.loads(line)["scores"] for line in lines]
    return scores


@pytest.mark.parametrize("version", ["4.", "5."])
def test_transformers_gives_the_scores_of_predict(version, folders):
    path = [str(OLDER)] if version == "4." else []
    if path and not OLDER.is_dir():
        pytest.skip(f"{OLDER} is missing; scripts/setup.sh test installs transformers 4 there")
    done = subprocess.run([sys.executable, "-c", SCORES, version, json.dumps(TEXTS), *folders], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(path)})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rpartition("scores: ")[2])
    for folder, expected in folders.items():
        for ours, theirs in zip(expected, found[folder], strict=True):
            assert theirs == pytest.approx(ours, abs=1e-5), folder
