"""`mezzo train --diagnose`: what it says, and that it changes no number of the run."""
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import MINILM, mezzo, random_bert, records
from transformers import AutoTokenizer

WORDS = "the of war market moon river code proof queen bread engine cat light vote song price".split()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    random_bert(folder, labels=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "train.json"
    generator = torch.Generator().manual_seed(0)
    pick = lambda n: int(torch.randint(n, (1,), generator=generator))
    path.write_text(json.dumps([[" ".join(WORDS[pick(16)] for _ in range(1 + pick(12))), pick(3)] for _ in range(96)]))
    return path


def train(small, texts, output, *flags, check=True):
    return mezzo("train", "--model", small, "--train", texts, "--dev-ratio", 0, "--output", output, "--seed", 7,
                 "--threads", 1, "--batch-size", 8, "--max-length", 24, "--eval-every", 0, "--learning-rate", 1e-3, *flags, check=check)


OVERFLOWING = ["--precision", "fp16", "--init-scale", 2**24, "--max-steps", 11, "--max-grad-norm", 1]


@pytest.mark.parametrize("flags", [OVERFLOWING, [*OVERFLOWING, "--master-weights", "--grad-accumulation", 2],
                                   ["--precision", "bf16", "--max-steps", 5]])
def test_no_number_of_the_run_changes(small, texts, tmp_path, flags):
    train(small, texts, tmp_path / "plain", *flags)
    train(small, texts, tmp_path / "diagnosed", *flags, "--diagnose")
    plain, diagnosed = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "diagnosed"))
    assert plain.keys() == diagnosed.keys() and all(torch.equal(plain[key], diagnosed[key]) for key in plain)
    strip = lambda name: [{k: v for k, v in r.items() if k != "seconds"} for r in records(tmp_path / name, "step")]
    assert strip("plain") == strip("diagnosed")
    assert not records(tmp_path / "plain", "diagnose") and records(tmp_path / "diagnosed", "diagnose")
    assert "Numerical diagnosis" in (tmp_path / "diagnosed" / "report.html").read_text()
    assert "Numerical diagnosis" not in (tmp_path / "plain" / "report.html").read_text()


def test_a_run_resumed_with_diagnosis_goes_on_as_without(small, texts, tmp_path):
    train(small, texts, tmp_path / "plain", *OVERFLOWING, "--save-every", 4, "--keep", 9)
    train(small, texts, tmp_path / "resumed", *OVERFLOWING, "--diagnose", "--resume",
          next((tmp_path / "plain" / "checkpoints").glob("*4")))
    plain, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "resumed"))
    assert all(torch.equal(plain[key], resumed[key]) for key in plain)


def test_every_skipped_step_names_its_gradients_and_the_op_where_it_began(small, texts, tmp_path):
    done = train(small, texts, tmp_path / "out", *OVERFLOWING, "--diagnose")
    skipped = [r["step"] for r in records(tmp_path / "out", "step") if r["skipped"]]
    found = {kind: [r for r in records(tmp_path / "out", "diagnose") if r["kind"] == kind]
             for kind in ("overflow", "first_op", "gradients")}
    assert 4 < len(skipped) < 11
    assert [r["step"] for r in found["overflow"]] == skipped
    assert [r["step"] for r in found["first_op"]] == skipped, "traced as they ran, and traced again from the fourth"
    for record in found["first_op"]:
        assert "inf or NaN in backward, at " in record["text"] and "float16 holds at most 65504" in record["text"]
    assert "gradients of AdamW held inf or NaN" in found["overflow"][0]["text"]
    assert "aten::" in done.stderr and "largest finite" in done.stderr
    (gradients,) = found["gradients"]
    parts = [group["name"] for group in gradients["groups"]]
    assert parts == ["embeddings", "layer 0", "layer 1", "pooler", "classifier"]
    assert "recommended for float16: " in done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Gradient magnitudes" in page and "what overflowed" in page and "where it began" in page


def test_a_nan_in_a_weight_is_traced_to_the_module_that_holds_it(small, texts, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in small.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = load_file(broken / "model.safetensors")
    weights["bert.encoder.layer.1.output.dense.weight"][3, 5] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    done = train(broken, texts, tmp_path / "out", "--precision", "fp32", "--max-steps", 2, "--diagnose")
    assert "received inf or NaN, which no traced op had produced, in forward, in module bert.encoder.layer.1.output" in done.stderr


def test_a_stuck_run_names_the_gradients(small, texts, tmp_path):
    done = train(small, texts, tmp_path / "out", "--precision", "bf16", "--learning-rate", 1e30, "--epochs", 9, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "training: the last 50 steps" in line]
    assert "gradients of" in line and "held inf or NaN: bert." in line and "--diagnose" in line
