"""`--calibrate`, `--top-k` and `--min-score`: the temperature is the one that SciPy finds, and scores are what it makes of logits."""
import json

import numpy
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss
from support import mezzo
from tiny_runs import LABELS, flags, run, sha, trained, write_data, write_rows
from transformers import AutoConfig


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A model that is too sure of itself: it has learnt a few texts by heart."""
    data = write_data(tmp_path_factory.mktemp("data"))
    write_rows(data / "dev.jsonl", 200, 1)
    write_rows(data / "test.jsonl", 200, 2)
    settings = ["--max-steps", 60, "--eval-every", 60, "--save-every", 30, "--keep", 9, "--test", data / "test.jsonl", "--calibrate"]
    done = trained(flags(data, data / "out", *settings))
    return data, data / "out", settings, done


def logits_and_labels(model, file):
    lines = mezzo("predict", "--model", model, "--data", file, "--precision", "fp32", "--logits").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [LABELS.index(json.loads(line)["label"]) for line in file.read_text().splitlines()]
    names = list(rows[0]["scores"])
    order = [names.index(name) for name in LABELS]
    return rows, torch.tensor([row["logits"] for row in rows], dtype=torch.float64)[:, order], numpy.array(labels)


def calibration_error(probabilities, labels, bins=15):
    confidence, right = probabilities.max(1), probabilities.argmax(1) == labels
    bin_of = numpy.clip(numpy.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return sum(abs(right[bin_of == b].mean() - confidence[bin_of == b].mean()) * (bin_of == b).mean() for b in set(bin_of))


def test_the_temperature_is_of_the_least_log_loss_on_dev(calibrated):
    data, out, _, _ = calibrated
    temperature = json.loads((out / "config.json").read_text())["softmax_temperature"]
    _, logits, labels = logits_and_labels(out, data / "dev.jsonl")
    found = minimize_scalar(lambda t: log_loss(labels, (logits / t).softmax(1).numpy()), bounds=(0.01, 100), method="bounded", options=dict(xatol=1e-9))
    # The logits of the run are of other batches, so rounded otherwise; SciPy stops where the loss looks flat.
    assert temperature == pytest.approx(found.x, rel=1e-4)
    assert temperature > 1.2, "it was too sure"
    assert AutoConfig.from_pretrained(out).softmax_temperature == temperature


def test_scores_and_errors_are_of_the_calibrated_probabilities(calibrated):
    data, out, _, done = calibrated
    temperature = json.loads((out / "config.json").read_text())["softmax_temperature"]
    rows, logits, labels = logits_and_labels(out, data / "test.jsonl")
    probabilities = (logits / temperature).softmax(1).numpy()
    for row, expected in zip(rows, probabilities):
        assert [row["scores"][name] for name in LABELS] == pytest.approx(expected, abs=1e-6)
        assert row["score"] == max(row["scores"].values()) == row["scores"][row["label"]]
    said = json.loads(mezzo("eval", "--model", out, "--data", data / "test.jsonl", "--precision", "fp32", "--json").stdout)
    before, after = (calibration_error(p, labels) for p in (logits.softmax(1).numpy(), probabilities))
    assert said["loss"] == pytest.approx(log_loss(labels, logits.softmax(1).numpy()), rel=1e-5), "of the logits as they are"
    assert said["log_loss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-5)
    # A row whose confidence lies at the edge of a bin may fall on either side.
    assert said["expected_calibration_error"] == pytest.approx(after, abs=2e-3)
    assert said["expected_calibration_error_before"] == pytest.approx(before, abs=2e-3)
    assert after < before
    line = (f"expected calibration error {said['expected_calibration_error']:.4f}; without the temperature of {temperature:.4g}: "
            f"{said['expected_calibration_error_before']:.4f}")
    assert line in done.stdout and line in (out / "report.html").read_text()


def test_weights_are_those_without_and_a_resumed_run_has_the_temperature(calibrated, tmp_path):
    data, out, settings, _ = calibrated
    trained(flags(data, tmp_path / "plain", *settings[:-1]))
    assert sha(tmp_path / "plain/model.safetensors") == sha(out / "model.safetensors")
    assert "softmax_temperature" not in json.loads((tmp_path / "plain/config.json").read_text())
    trained(flags(data, tmp_path / "again", *settings, "--resume", out / "checkpoints/step-30"))
    assert (tmp_path / "again/config.json").read_bytes() == (out / "config.json").read_bytes()


def test_further_training_begins_without_a_temperature(calibrated, tmp_path):
    data, out, _, _ = calibrated
    mezzo("train", "--model", out, "--train", data / "train.jsonl", "--dev-ratio", 0, "--max-steps", 1, "--max-length", 16, "--output", tmp_path / "out")
    assert "softmax_temperature" not in json.loads((tmp_path / "out/config.json").read_text())


def test_top_k_and_min_score(calibrated):
    data, out, _, _ = calibrated
    file = data / "test.jsonl"
    everything, _, _ = logits_and_labels(out, file)
    least = sorted(row["score"] for row in everything)[100]
    lines = mezzo("predict", "--model", out, "--data", file, "--precision", "fp32", "--top-k", 2, "--min-score", least).stdout.splitlines()
    some = [json.loads(line) for line in lines]
    unsure = 0
    for row, whole in zip(some, everything):
        best = sorted(whole["scores"].items(), key=lambda item: -item[1])[:2]
        assert list(row["scores"].items()) == best
        assert row["score"] == whole["score"]
        assert row["label"] == (whole["label"] if whole["score"] >= least else None)
        unsure += row["label"] is None
    assert 0 < unsure < len(some)
    one = json.loads(mezzo("predict", "--model", out, "--text", "goal", "--top-k", 99).stdout)
    assert len(one["scores"]) == 3


@pytest.mark.parametrize("more, message", [
    (["--top-k", 0], "--top-k is 0, expected at least 1"),
    (["--min-score", 1.5], "--min-score is 1.5, expected a number from 0 to 1"),
    (["--min-score", "nan"], "--min-score is nan"),
])
def test_wrong_options_of_predict(more, message, calibrated):
    done = run(["predict", "--model", calibrated[1], "--text", "a", *more])
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


@pytest.mark.parametrize("more, message", [
    (["--calibrate", "--dev-ratio", 0], "--calibrate fits on dev: it needs --dev or --dev-ratio"),
    (["--calibrate", "--task", "regression"], "--calibrate fits the confidence of single labels; the task is regression"),
])
def test_wrong_settings_of_train(more, message, calibrated, tmp_path):
    data = calibrated[0]
    rows = [["goal", 1.5], ["law", 2]] if "regression" in more else [["goal", "a"], ["law", "b"]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    done = run(["train", "--model-config", data / "config.json", "--vocab", data / "vocab.txt", "--train", tmp_path / "rows.json", "--output", tmp_path / "out", "--max-length", 16, *more])
    assert done.returncode in (1, 2) and message in done.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("value, message", [
    ("0", "softmax_temperature is 0, expected a number above 0"),
    ("-1", "softmax_temperature is -1"),
    ('"warm"', 'softmax_temperature is "warm"'),
])
def test_a_wrong_temperature_in_a_config(value, message, calibrated, tmp_path):
    for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((calibrated[1] / file).read_bytes())
    config = json.loads((calibrated[1] / "config.json").read_text())
    config["softmax_temperature"] = json.loads(value)
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run(["predict", "--model", tmp_path, "--text", "a"])
    assert done.returncode == 1 and f"config.json: {message}" in done.stderr
