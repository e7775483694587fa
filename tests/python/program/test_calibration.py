"""`--calibrate`, `--top-k` and `--min-score`: the temperature is the one that SciPy finds, and the last layer is divided by it."""
import json
import re
import shutil

import numpy
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss
from support import mezzo, records
from tiny_runs import LABELS, flags, run, sha, trained, write_data, write_rows


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


def test_the_temperature_of_the_least_log_loss_on_dev_is_in_the_weights(calibrated):
    data, out, _, done = calibrated
    _, logits, labels = logits_and_labels(out, data / "dev.jsonl")
    found = minimize_scalar(lambda t: log_loss(labels, (logits / t).softmax(1).numpy()), bounds=(0.01, 100), method="bounded", options=dict(xatol=1e-9))
    # Float32 weights, and logits of other batches, round otherwise. SciPy stops when the loss looks flat.
    assert found.x == pytest.approx(1, rel=1e-4), "nothing is left to fit"
    said = re.search(r"temperature ([0-9.]+) fitted on dev: calibration error ([0-9.]+) there, ([0-9.]+) without it", done.stderr)
    temperature, after, before = map(float, said.groups())
    assert temperature > 1.2, "it was too sure"
    # A row whose confidence lies at the edge of a bin may fall on either side.
    assert after == pytest.approx(calibration_error(logits.softmax(1).numpy(), labels), abs=2e-3)
    assert before == pytest.approx(calibration_error((logits * temperature).softmax(1).numpy(), labels), abs=2e-3) and after < before


def test_scores_and_errors_are_of_the_calibrated_probabilities(calibrated):
    data, out, _, done = calibrated
    rows, logits, labels = logits_and_labels(out, data / "test.jsonl")
    probabilities = logits.softmax(1).numpy()
    for row, expected in zip(rows, probabilities):
        assert [row["scores"][name] for name in LABELS] == pytest.approx(expected, abs=1e-6)
        assert row["score"] == max(row["scores"].values()) == row["scores"][row["label"]]
    said = json.loads(mezzo("eval", "--model", out, "--data", data / "test.jsonl", "--precision", "fp32", "--json").stdout)
    assert said["loss"] == pytest.approx(log_loss(labels, probabilities), rel=1e-5) == pytest.approx(said["log_loss"], rel=1e-5)
    assert said["expected_calibration_error"] == pytest.approx(calibration_error(probabilities, labels), abs=2e-3)
    final = [record for record in records(out, "eval") if record.get("final")]
    assert final[0]["loss"] == pytest.approx(said["loss"], rel=1e-5), "the report is of the model that was saved"


def test_only_the_last_layer_differs_from_a_run_without(calibrated, tmp_path):
    data, out, settings, done = calibrated
    trained(flags(data, tmp_path / "plain", *settings[:-1]))
    plain, tuned = (load_file(folder / "model.safetensors") for folder in (tmp_path / "plain", out))
    temperature = float(re.search("temperature ([0-9.]+)", done.stderr)[1])
    for name, tensor in plain.items():
        if name.startswith("classifier."):
            torch.testing.assert_close(tuned[name], tensor / temperature, rtol=1e-3, atol=0)  # of the four digits that were printed
        else:
            assert torch.equal(tuned[name], tensor), name
    assert (tmp_path / "plain/config.json").read_bytes() == (out / "config.json").read_bytes()
    trained(flags(data, tmp_path / "again", *settings, "--resume", out / "checkpoints/step-30"))
    assert sha(tmp_path / "again/model.safetensors") == sha(out / "model.safetensors")


def test_a_longer_run_goes_on_from_the_weights_before(calibrated, tmp_path):
    data, out, settings, _ = calibrated
    shutil.copytree(out, tmp_path / "longer")
    longer = [70 if value == 60 and settings[i - 1] == "--max-steps" else value for i, value in enumerate(settings)]
    trained(flags(data, tmp_path / "longer", *longer, "--resume", "auto"))
    trained(flags(data, tmp_path / "at once", *longer))
    assert sha(tmp_path / "longer/model.safetensors") == sha(tmp_path / "at once/model.safetensors")


def test_an_adapter_is_calibrated_as_the_merged_model_is(calibrated, tmp_path):
    data, out, _, _ = calibrated
    trained(["train", "--model", out, "--train", data / "train.jsonl", "--dev", data / "dev.jsonl", "--max-steps", 30, "--max-length", 16, "--lora", 2,
             "--learning-rate", 0.05, "--calibrate", "--output", tmp_path / "out"])
    merged = load_file(tmp_path / "out/model.safetensors")
    adapter = load_file(tmp_path / "out/adapter/adapter_model.safetensors")
    assert torch.equal(adapter["base_model.model.classifier.weight"], merged["classifier.weight"])
    assert torch.equal(adapter["base_model.model.classifier.bias"], merged["classifier.bias"])


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


@pytest.mark.parametrize("field, value", [("softmax_temperature", 1.5), ("label_thresholds", [0.2, 0.5, 0.5])])
def test_a_config_of_an_earlier_version_is_refused(field, value, calibrated, tmp_path):
    shutil.copytree(calibrated[1], tmp_path / "old", ignore=shutil.ignore_patterns("checkpoints"))
    config = json.loads((tmp_path / "old/config.json").read_text())
    (tmp_path / "old/config.json").write_text(json.dumps(config | {field: value}))
    done = run(["predict", "--model", tmp_path / "old", "--text", "a"])
    assert done.returncode == 1 and f"config.json: {field} is" in done.stderr and "mezzo now puts it into the weights. Train the model again" in done.stderr
