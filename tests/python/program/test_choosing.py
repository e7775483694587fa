"""What `--metric` and `--patience` choose: the best model by any metric, and when a run ends."""
import json

import pytest
from support import records
from tiny_runs import flags, model_of, run, trained, write_data, write_rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("metric, choose", [
    ("accuracy", max), ("macro_f1", max), ("weighted_f1", max), ("balanced_accuracy", max), ("matthews_corrcoef", max),
    ("roc_auc", max), ("average_precision", max), ("log_loss", min), ("expected_calibration_error", min)])
def test_metric_chooses_the_best_model(metric, choose, data, tmp_path):
    out = tmp_path / "out"
    trained([*flags(data, out), "--metric", metric])
    evaluations = [r for r in records(out, "eval") if not r.get("final")]
    values = [r[metric] for r in evaluations]
    assert len(set(values)) > 1  # or any step would do
    best = min((r for r in evaluations if r[metric] == choose(values)), key=lambda r: r["loss"])
    written = json.loads((out / "run.json").read_text())
    assert written["best_step"] == best["step"] and written["best_" + metric] == best[metric] and written["best_loss"] == best["loss"]
    assert f">{best['step']}, the best</td>" in (out / "report.html").read_text()


def test_a_metric_that_the_task_has_not_is_refused(data, tmp_path):
    done = run([*flags(data, tmp_path / "out"), "--metric", "accurcy"])
    assert done.returncode == 1 and "accurcy" in done.stderr and "accuracy" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_patience_ends_a_run(data, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    trained(flags(data, whole, "--metric", "log_loss", "--learning-rate", 0.5))
    values = [r["log_loss"] for r in records(whole, "eval") if not r.get("final")]
    ends = next(i for i in range(2, len(values) + 1) if i - 1 - values[:i].index(min(values[:i])) == 1)
    assert ends < len(values)  # or patience has nothing to end
    done = trained(flags(data, out, "--metric", "log_loss", "--learning-rate", 0.5, "--patience", 1))
    assert f"step {ends}: 1 evaluation without a better model; training ends here (--patience 1)" in done.stderr
    assert [r["step"] for r in records(out, "step")] == list(range(1, ends + 1))
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert min(values) in values[:ends] and model_of(out) == model_of(whole)  # nothing better was missed


def test_of_equals_the_one_with_the_lower_dev_loss_is_kept(data, tmp_path):
    """By steps that are too small to change a prediction; --patience counts such a model as a better one."""
    out = tmp_path / "out"
    trained(flags(data, out, "--learning-rate", 1e-5, "--patience", 1))
    evaluations = [r for r in records(out, "eval") if not r.get("final")]
    assert len({r["accuracy"] for r in evaluations}) == 1 and len(evaluations) == 6
    losses = [r["loss"] for r in evaluations]
    assert losses == sorted(losses, reverse=True)
    assert json.loads((out / "run.json").read_text())["best_step"] == 6
    trained(flags(data, tmp_path / "two", "--learning-rate", 1e-5, "--max-steps", 2))
    again = trained(flags(data, tmp_path / "again", "--learning-rate", 1e-5, "--resume", tmp_path / "two/checkpoints/step-2"))
    assert "resumed after step 2" in again.stderr and model_of(tmp_path / "again") == model_of(out)


ONE_CLASS = '{"text": "goal", "label": "sport"}\n{"text": "team", "label": "sport"}\n'


@pytest.mark.parametrize("metric, task, rows, why", [
    ("roc_auc", "single_label_classification", ONE_CLASS, "2 of 3 labels have no text: 'politics', 'weather'"),
    ("roc_auc", "multi_label_classification", '{"text": "goal", "label": ["sport", "politics"]}\n{"text": "law", "label": ["weather", "sport"]}\n',
     "all texts have label 'sport'"),
    ("pearson", "regression", '{"text": "goal", "label": 3}\n{"text": "law", "label": 3}\n', "all numbers are 3"),
    ("spearman", "regression", '{"text": "goal", "label": 3}\n', "there is one text"),
])  # fmt: skip
def test_a_metric_that_is_not_defined_on_dev_is_refused_before_training(metric, task, rows, why, data, tmp_path):
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    labels = {"single_label_classification": ["sport", "politics", "weather"], "regression": [1, 2, 3],
              "multi_label_classification": [["sport"], ["politics"], ["weather"]]}[task]
    train.write_text("".join(json.dumps({"text": word, "label": label}) + "\n" for word, label in zip(["goal", "law", "storm"], labels)))
    dev.write_text(rows)
    given = flags(data, tmp_path / "out", "--train", train, "--dev", dev, "--task", task, "--metric", metric)
    done = run(given)
    assert done.returncode == 1 and not (tmp_path / "out").exists()
    assert done.stderr == f"mezzo train: --metric {metric} is not defined on the dev texts: {why}. Pass another --metric, or other dev texts\n"
    trained(given[:given.index("--metric")])


def test_a_metric_that_becomes_undefined_leaves_the_choice_to_the_dev_loss(data, tmp_path):
    """Equal texts have equal predictions, which have no correlation with anything."""
    (tmp_path / "train.jsonl").write_text("".join(f'{{"text": "{word}", "label": {i}}}\n' for i, word in enumerate(["goal", "team", "law", "vote"])))
    (tmp_path / "dev.jsonl").write_text('{"text": "goal", "label": 1}\n{"text": "goal", "label": 2}\n')
    given = ["--train", tmp_path / "train.jsonl", "--dev", tmp_path / "dev.jsonl", "--task", "regression", "--metric", "pearson", "--batch-size", 4]
    done = trained(flags(data, tmp_path / "out", *given))
    assert done.stderr.count("warning: step 1: the metric pearson is undefined for the predictions on dev.") == done.stderr.count("undefined") == 1
    assert "Pearson correlation NaN" in done.stderr and "nan" not in done.stderr
    evaluations = [r for r in records(tmp_path / "out", "eval") if not r.get("final")]
    best = min(evaluations, key=lambda r: r["loss"])
    written = json.loads((tmp_path / "out/run.json").read_text())
    assert (written["best_step"], written["best_pearson"], written["best_loss"]) == (best["step"], None, best["loss"])
    assert [warning["kind"] for warning in written["warnings"]].count("undefined_metric") == 1
    assert f"model of step {best['step']}, the best on dev with loss {best['loss']:.4f}:" in done.stdout
    trained(flags(data, tmp_path / "again", *given, "--resume", tmp_path / "out/checkpoints/step-4"))
    assert model_of(tmp_path / "again") == model_of(tmp_path / "out")


@pytest.mark.parametrize("more, message", [
    (["--patience", 2, "--eval-every", 0], "--patience counts evaluations on dev: it needs --dev or --dev-ratio, and --eval-every"),
    (["--patience", -1], "--patience"),
])
def test_what_cannot_be_meant_is_refused(more, message, data, tmp_path):
    done = run([*flags(data, tmp_path / "out"), *more])
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_dev_part_by_class(tmp_path):
    data = write_data(tmp_path / "data")
    write_rows(data / "train.jsonl", 300, 3)
    given = flags(data, tmp_path / "out")
    at = given.index("--dev")
    given[at:at + 2] = ["--stratify", "--dev-ratio", "0.1"]
    done = trained(given)
    assert "270 training, 30 dev and 0 test texts in 3 classes" in done.stderr + done.stdout
    assert json.loads((tmp_path / "out/run.json").read_text())["settings"]["stratify"] == "true"
    for more, message in ((["--dev", data / "dev.jsonl"], "--stratify splits the training texts, and there is --dev; leave one of them out"),
                          (["--task", "multi_label_classification"], "--stratify needs classes, and multi_label_classification has none; leave it out"),
                          (["--dev-ratio", "0"], "--stratify splits the training texts, and there is no part for dev; raise --dev-ratio")):
        if "multi" in message:
            (data / "train.jsonl").write_text('["goal", ["a"]]\n["law", ["b"]]\n' * 20)
        again = run([*given, *more, "--overwrite"])
        assert again.returncode in (1, 2) and message in again.stderr, again.stderr
