"""`mezzo train --diagnose`: its report. It changes no number of the run."""
import json
import re

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


OVERFLOWING = ["--precision", "fp16", "--loss-scale", f"dynamic:{2**24}", "--max-steps", 11, "--max-grad-norm", 1]


@pytest.mark.parametrize("flags", [OVERFLOWING, [*OVERFLOWING, "--master-weights", "--grad-accumulation", 2],
                                   ["--precision", "bf16", "--max-steps", 5]])
def test_no_number_of_the_run_changes(small, texts, tmp_path, flags):
    train(small, texts, tmp_path / "plain", *flags)
    train(small, texts, tmp_path / "diagnosed", *flags, "--diagnose")
    plain, diagnosed = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "diagnosed"))
    assert plain.keys() == diagnosed.keys() and all(torch.equal(plain[key], diagnosed[key]) for key in plain)
    strip = lambda name: [{k: v for k, v in r.items() if k not in ("seconds", "parts")} for r in records(tmp_path / name, "step")]
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
    assert "gradients of mezzo::AdamW held inf or NaN" in found["overflow"][0]["text"]
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
    assert "gradients of" in line and "held inf or NaN: bert." in line
    assert "the loss itself is inf or NaN: lower --learning-rate" in line and line.endswith("--diagnose finds the origin")


@pytest.mark.parametrize("more", [[], ["--diagnose"]])
def test_a_scale_that_is_too_large_and_stays_is_blamed_with_one_that_would_do(small, texts, tmp_path, more):
    done = train(small, texts, tmp_path / "out", "--precision", "fp16", "--loss-scale", 1e12, "--epochs", 9, *more, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "training: the last 50 steps" in line]
    found = re.search(r"the loss is 1\.\d+, and without a loss scale all gradients are finite: 1e\+12 is too large and never "
                      r"changes; pass --loss-scale dynamic, or (\d+);", line)
    assert found and "learning-rate" not in line
    assert ("--diagnose finds the origin" in line) == (not more)
    done = train(small, texts, tmp_path / "mended", "--precision", "fp16", "--loss-scale", found[1], "--max-steps", 5)
    assert not any(record["skipped"] for record in records(tmp_path / "mended", "step"))


def test_a_scale_that_is_too_large_and_falls_is_told_with_the_flag_of_one_that_fits(small, texts, tmp_path):
    train(small, texts, tmp_path / "out", "--precision", "fp16", "--loss-scale", "dynamic:1e12", "--max-steps", 2, "--diagnose")
    cause = next(r["text"] for r in records(tmp_path / "out", "diagnose") if r["kind"] == "cause")
    found = re.search(r"1e\+12 is too large and falls by itself; --loss-scale (dynamic:\d+) would have fitted$", cause)
    assert found, cause
    train(small, texts, tmp_path / "mended", "--precision", "fp16", "--loss-scale", found[1], "--max-steps", 5)
    assert not any(record["skipped"] for record in records(tmp_path / "mended", "step"))


def test_a_run_that_skipped_every_step_says_that_nothing_was_learned(small, texts, tmp_path):
    flags = ["--precision", "fp16", "--loss-scale", 1e12, "--quiet"]
    done = train(small, texts, tmp_path / "out", *flags, "--max-steps", 3, "--save-every", 3)
    said = ("Nothing was learned: each of its 3 steps was skipped, because gradients were inf or NaN. The weights have not changed; "
            "--diagnose shows where inf and NaN begin.")
    assert done.stderr.splitlines() == ["warning: " + said]
    assert said in (tmp_path / "out" / "report.html").read_text()
    done = train(small, texts, tmp_path / "out", *flags, "--max-steps", 5, "--resume", "auto", "--diagnose")
    assert "warning: Nothing was learned: each of its 5 steps" in done.stderr and "weights have not changed.\n" in done.stderr


def test_a_run_that_goes_on_and_skips_the_rest_has_learned_something(small, texts, tmp_path):
    flags = ["--precision", "fp16", "--loss-scale", 128, "--learning-rate", 1e6, "--warmup-ratio", 0, "--save-every", 1]
    train(small, texts, tmp_path / "out", *flags, "--max-steps", 1)
    done = train(small, texts, tmp_path / "out", *flags, "--max-steps", 3, "--resume", "auto")
    assert [record["skipped"] for record in records(tmp_path / "out", "step")] == [False, True, True]
    assert "Nothing was learned" not in done.stderr + (tmp_path / "out" / "report.html").read_text()


def test_what_fifty_steps_were_skipped_for_is_said_once(small, texts, tmp_path):
    done = train(small, texts, tmp_path / "out", "--precision", "fp16", "--loss-scale", 1e12, "--epochs", 9, "--diagnose", check=False)
    assert done.stderr.count("gradients of mezzo::AdamW held inf or NaN\n") == 1
    assert done.stderr.count(" produced inf or NaN in backward") == 1
    assert "49 more steps skipped for the same reason, up to step 50 with loss scale 1e+12" in done.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("what overflowed") == 1 and "the same up to step 50" in page
    assert len([r for r in records(tmp_path / "out", "diagnose") if r["kind"] == "overflow"]) == 50, "the records have all"


def test_an_overflow_in_forward_names_the_cast_and_the_op_whose_result_it_cast(small, texts, tmp_path):
    done = train(small, texts, tmp_path / "out", "--precision", "fp16", "--learning-rate", 100, "--max-steps", 9, "--diagnose", check=False)
    first = next(r for r in records(tmp_path / "out", "diagnose") if r["kind"] == "first_op")
    assert re.match(r"a cast from float32 to float16 of the result of aten::\w+ produced inf or NaN in forward, in module bert\.",
                    first["text"]), first["text"]
    assert "the loss itself is inf or NaN, so no loss scale helps" in done.stderr and "-nan" not in done.stderr


def test_gradients_that_became_zero_by_too_small_a_scale_are_counted(small, texts, tmp_path):
    done = train(small, texts, tmp_path / "out", "--precision", "fp16", "--loss-scale", 1e-6, "--max-steps", 4, "--diagnose")
    assert "need almost no scale" not in done.stderr
    assert re.search(r"the scale is too small for float16: of gradients that are not 0, it loses .* \d+\.\d+ % of layer 0,", done.stderr)
    assert "The scale is too small for float16" in (tmp_path / "out" / "report.html").read_text()
    groups = {g["name"]: g for r in records(tmp_path / "out", "diagnose") if r["kind"] == "gradients" for g in r["groups"]}
    train(small, texts, tmp_path / "large", "--precision", "fp16", "--loss-scale", 8192, "--max-steps", 4, "--diagnose")
    large = {g["name"]: g for r in records(tmp_path / "large", "diagnose") if r["kind"] == "gradients" for g in r["groups"]}
    for name in "layer 0", "layer 1":
        count = sum(groups[name]["counts"])
        assert groups[name]["underflowed"] > 0.5 * count and large[name]["underflowed"] == 0
        assert groups[name]["zeros"] < 0.1 * count, "those that are 0 at any scale"
