"""mezzo compare: two runs side by side, against scikit-learn and scipy."""
import fcntl
import html.parser
import json
import os
import random
import shutil
import subprocess

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score
from support import PROGRAM, records
from tiny_runs import LABELS, flags, run, trained, write_data, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs, `a` and `b`, and `test.jsonl`."""
    folder = tmp_path_factory.mktemp("compare")
    data = write_data(folder / "data")
    write_rows(folder / "test.jsonl", 150, 5)
    for name, more in ("a", ["--learning-rate", 0.05]), ("b", ["--learning-rate", 0.002, "--seed", 7]):
        trained(flags(data, folder / name, *more))
    return folder


def compare(*arguments):
    return run(["compare", *arguments])


def compared(folder, *more):
    done = compare(folder / "a", folder / "b", "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"]


def correct(folder, name, texts="test.jsonl"):
    """Whether each text's label is right, by what `predict` says."""
    said = [json.loads(line)["label"] for line in trained(["predict", "--model", folder / name, "--data", folder / texts]).stdout.splitlines()]
    true = [json.loads(line)["label"] for line in (folder / texts).read_text().splitlines()]
    assert set(true) == set(LABELS)
    return np.array([one == other for one, other in zip(said, true)], dtype=float), accuracy_score(true, said)


def test_what_differs_and_what_came_of_it(folder):
    first, second = compared(folder)
    assert first["settings"] == {"learning-rate": "0.05", "seed": "2"} and second["settings"] == {"learning-rate": "0.002", "seed": "7"}
    for found, name in (first, "a"), (second, "b"):
        assert found["run"] == str(folder / name) and found["status"] == "finished" and "tested" not in found
        final = [record for record in records(folder / name, "eval") if record.get("final")]
        assert found["evaluation"] == final[-1] and found["end"] == records(folder / name, "end")[-1]


def test_metrics_intervals_and_p_value_are_those_of_scipy(folder):
    first, second = compared(folder, "--data", folder / "test.jsonl")
    (of_first, first_accuracy), (of_second, second_accuracy) = correct(folder, "a"), correct(folder, "b")
    assert first["tested"]["accuracy"]["value"] == pytest.approx(first_accuracy, abs=1e-12)
    assert second["tested"]["accuracy"]["value"] == pytest.approx(second_accuracy, abs=1e-12)
    assert 0.1 < abs(first_accuracy - second_accuracy), "models that can be told apart"
    # Percentiles of 1,000 draws lie within four of their standard errors, 0.013 for a spread of 0.04, of other draws.
    for found, of in (first["tested"]["accuracy"], of_first), (second["tested"]["accuracy"], of_second):
        expected = stats.bootstrap((of,), np.mean, n_resamples=5000, method="percentile", random_state=1).confidence_interval
        assert found["low"] == pytest.approx(expected.low, abs=0.02) and found["high"] == pytest.approx(expected.high, abs=0.02)
        assert found["low"] < found["value"] < found["high"]
    beyond = second["beyond_the_first"]
    assert beyond["metric"] == "accuracy" and beyond["difference"]["value"] == pytest.approx(second_accuracy - first_accuracy, abs=1e-12)
    paired = stats.bootstrap((of_second - of_first,), np.mean, n_resamples=5000, method="percentile", random_state=1).confidence_interval
    assert beyond["difference"]["low"] == pytest.approx(paired.low, abs=0.025)
    assert beyond["difference"]["high"] == pytest.approx(paired.high, abs=0.025)
    by_chance = stats.permutation_test((of_first, of_second), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
                                       n_resamples=5000, vectorized=True, random_state=1)
    assert beyond["p_value"] == pytest.approx(by_chance.pvalue, abs=0.03)
    assert "tested" in compared(folder, "--data", folder / "test.jsonl")[0] and first == compared(folder, "--data", folder / "test.jsonl")[0], "the same again"


def test_a_model_beside_itself_is_not_better(folder):
    shutil.copytree(folder / "a", folder / "again", dirs_exist_ok=True)
    done = compare(folder / "a", folder / "again", "--json", "--data", folder / "test.jsonl")
    second = json.loads(done.stdout)["runs"][1]
    assert second["settings"] == {} and second["beyond_the_first"] == dict(metric="accuracy", difference=dict(value=0, low=0, high=0), p_value=1)


def trained_for(folder, task, rows, *more):
    """Two runs of a task, and what `eval` says of each on the rows."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for seed in 3, 4:
        trained(["train", "--model-config", folder / "data/config.json", "--vocab", folder / "data/vocab.txt", "--train", folder / "rows.jsonl",
                 "--dev", folder / "rows.jsonl", "--output", folder / str(seed), "--task", task, "--max-length", 16, "--batch-size", 4,
                 "--epochs", 3, "--learning-rate", 0.03, "--seed", seed, "--threads", 1, "--precision", "bf16", *more])
    return [json.loads(trained(["eval", "--model", folder / str(seed), "--data", folder / "rows.jsonl", "--json"]).stdout) for seed in (3, 4)]


ROWS = {
    "multi_label_classification": lambda rng, words: dict(text=" ".join(words), label=sorted({word for word in words if word in ("goal", "law", "rain")})),
    "regression": lambda rng, words: dict(text=" ".join(words), label=words.count("goal") - words.count("rain") + rng.random()),
    "token_classification": lambda rng, words: dict(text=words, label=["B-X" if word in ("goal", "team") else "O" for word in words]),
}


@pytest.mark.parametrize("task", ROWS)
def test_every_task_is_measured_as_eval_measures_it(task, tmp_path):
    write_data(tmp_path / "data")
    rng = random.Random(1)
    rows = [ROWS[task](rng, rng.choices("goal team law vote rain storm".split(), k=rng.randint(1, 5))) for _ in range(60)]
    expected = trained_for(tmp_path, task, rows)
    found = [run for run in json.loads(compare(tmp_path / "3", tmp_path / "4", "--json", "--data", tmp_path / "rows.jsonl").stdout)["runs"]]
    for run_, values in zip(found, expected):
        assert run_["tested"] and all(measured["value"] == pytest.approx(values[name], abs=1e-9) for name, measured in run_["tested"].items())
        assert all(measured["low"] <= measured["value"] <= measured["high"] for measured in run_["tested"].values())
    first = next(iter(found[1]["tested"]))
    assert found[1]["beyond_the_first"]["difference"]["value"] == pytest.approx(expected[1][first] - expected[0][first], abs=1e-9)


def test_what_is_not_defined_is_NaN(tmp_path):
    """The correlation with numbers that are anyway."""
    write_data(tmp_path / "data")
    trained_for(tmp_path, "regression", [dict(text="goal", label=1.5), dict(text="law", label=0.5), dict(text="goal law", label=2)] * 4)
    (tmp_path / "same.jsonl").write_text('{"text": "goal", "label": 1}\n{"text": "law", "label": 1}\n')
    said = trained(["eval", "--model", tmp_path / "3", "--data", tmp_path / "same.jsonl"]).stdout
    assert [line.split() for line in said.splitlines()[3:]] == [["Pearson", "correlation", "NaN"], ["Spearman", "correlation", "NaN"]]
    said = compare(tmp_path / "3", tmp_path / "4", "--data", tmp_path / "same.jsonl").stdout
    assert "NaN (NaN to NaN)" in said and "nan" not in said.replace(str(tmp_path), "")


def test_words_of_models_that_cut_others_are_not_compared(tmp_path):
    write_data(tmp_path / "data")
    rows = [ROWS["token_classification"](None, ["goal", "law"] * 5) for _ in range(8)]
    trained_for(tmp_path, "token_classification", rows)
    short = json.loads((tmp_path / "4/tokenizer_config.json").read_text()) | dict(model_max_length=6)
    (tmp_path / "4/tokenizer_config.json").write_text(json.dumps(short))
    done = compare(tmp_path / "3", tmp_path / "4", "--data", tmp_path / "rows.jsonl")
    assert done.returncode == 1 and "do not read the same words" in done.stderr.splitlines()[-1]


def test_few_texts_have_the_p_value_of_scipy(folder):
    """Where models cannot be told apart: which texts these are hangs on the last bits of a processor's sums."""
    for seed in range(10, 30):
        write_rows(folder / "few.jsonl", 30, seed)
        (of_first, _), (of_second, _) = correct(folder, "a", "few.jsonl"), correct(folder, "b", "few.jsonl")
        by_chance = stats.permutation_test((of_first, of_second), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
                                           n_resamples=5000, vectorized=True, random_state=1)
        if 0.1 < by_chance.pvalue < 0.9:
            break
    found = json.loads(compare(folder / "a", folder / "b", "--json", "--data", folder / "few.jsonl").stdout)["runs"][1]["beyond_the_first"]
    # 1,000 draws are off by 0.016 at most, the standard error at 1/2; three of them.
    assert 0.1 < by_chance.pvalue < 0.9 and found["p_value"] == pytest.approx(by_chance.pvalue, abs=0.05)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_tables_and_curves_and_runs_nothing(folder):
    strange = folder / "<b>&amp;"
    shutil.copytree(folder / "b", strange, dirs_exist_ok=True)
    output = folder / "page.html"
    assert compare(folder / "a", strange, "--data", folder / "test.jsonl", "--output", output).returncode == 0
    page = Page(output.read_text())
    assert page.open == [] and "script" not in page.tags and "b" in page.tags  # titles of charts
    text = " ".join(page.text)
    assert str(strange) in text and "Settings that differ" in text and "learning-rate" in text and "150 texts of" in text
    assert page.tags.count("svg") == 6 and page.tags.count("table") == 3 + 6, "and no machines that differ"


def test_tables_for_people(folder):
    done = compare(folder / "a", folder / "b")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["settings", "that", "differ", str(folder / "a"), str(folder / "b")]
    assert lines[1].split() == ["learning-rate", "0.05", "0.002"]
    assert any(line.split()[:2] == ["dev", "accuracy"] for line in lines)
    assert not any(line != line.rstrip() for line in lines)


def test_a_run_that_was_not_finished_is_compared_too(folder, tmp_path):
    shutil.copytree(folder / "b", tmp_path / "c")
    kept = (tmp_path / "c/metrics.jsonl").read_text().splitlines()[:1]
    (tmp_path / "c/metrics.jsonl").write_text(kept[0] + "\n")
    told = json.loads((tmp_path / "c/run.json").read_text())
    (tmp_path / "c/run.json").write_text(json.dumps(told | dict(status="stopped", best_step=None)))
    done = compare(folder / "a", tmp_path / "c", "--output", tmp_path / "page.html")
    assert done.returncode == 0 and any(line.split() == ["run", "finished", "stopped"] for line in done.stdout.splitlines())


def test_a_run_that_was_killed_is_not_called_running(folder, tmp_path):
    shutil.copytree(folder / "b", tmp_path / "c")
    told = json.loads((tmp_path / "c/run.json").read_text())
    (tmp_path / "c/run.json").write_text(json.dumps(told | dict(status="running")))
    gone = f"{tmp_path}/c ended unexpectedly; the same command with --resume auto resumes it"
    for leaves_lock in False, True:
        if leaves_lock:
            (tmp_path / "c/.run.lock").touch()
        lines = compare(folder / "a", tmp_path / "c").stdout.splitlines()
        assert lines[-1] == gone and any(line.split() == ["run", "finished", "broken", "off"] for line in lines)
    with open(tmp_path / "c/.run.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = compare(folder / "a", tmp_path / "c").stdout.splitlines()
        assert gone not in lines and any(line.split() == ["run", "finished", "running"] for line in lines)


def one_line(done, status):
    assert done.returncode == status and done.stdout == "" and done.stderr.count("\n") == 1, done
    return done.stderr


def test_what_cannot_be_compared_is_said_in_a_line(folder, tmp_path):
    for output in folder / "a/model.safetensors", folder / "test.jsonl":
        before = output.read_bytes()
        done = compare(folder / "a", folder / "b", "--data", folder / "test.jsonl", "--output", output)
        assert "is a file of a run, or of --data: the page would replace it" in one_line(done, 2) and output.read_bytes() == before
    (tmp_path / "precious.csv").write_text("text,label\n")
    done = compare(folder / "a", folder / "b", "--output", tmp_path / "precious.csv")
    assert f"--output is '{tmp_path}/precious.csv', expected a name that ends in .html" in one_line(done, 2)
    assert (tmp_path / "precious.csv").read_text() == "text,label\n"
    assert "--device needs --data" in one_line(compare(folder / "a", folder / "b", "--device", "cpu"), 2)
    assert compare("--data", folder / "test.jsonl", folder / "a", folder / "b").returncode == 0, "a file for each --data"
    twice = [PROGRAM, "compare", folder / "a", folder / "b", "--data", folder / "test.jsonl", "--data", folder / "few.jsonl"]
    assert "test.jsonl and 1 more" in subprocess.run(twice, capture_output=True, text=True, timeout=300).stdout
    (tmp_path / "folds").mkdir()
    (tmp_path / "folds/folds.json").write_text("{}")
    assert "holds the folds of a run; name the folds" in one_line(compare(folder / "a", tmp_path / "folds"), 1)
    assert "one run to compare; pass 2 to 8 folders of runs" in one_line(compare(folder / "a"), 2)
    assert "9 runs to compare; pass 2 to 8" in one_line(compare(*[folder / str(i) for i in range(9)]), 2)
    assert f"{folder}/a/ is named twice" in one_line(compare(folder / "a", f"{folder}/a/"), 2)
    assert "there is no such folder" in one_line(compare(folder / "a", tmp_path / "none"), 1)
    assert "has no run.json, so it is not an OUTPUT of mezzo train" in one_line(compare(folder / "a", tmp_path), 1)
    shutil.copytree(folder / "b", tmp_path / "damaged")
    for text, message in ("{", "run.json"), ("{}", "lacks settings, status or best_step"):
        (tmp_path / "damaged/run.json").write_text(text)
        assert message in one_line(compare(folder / "a", tmp_path / "damaged"), 1)
    shutil.copytree(folder / "b", tmp_path / "cut")
    (tmp_path / "cut/metrics.jsonl").write_text("")
    assert "lacks the end of a run that run.json calls finished" in one_line(compare(folder / "a", tmp_path / "cut"), 1)
    (tmp_path / "cut/metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "cut/metrics.jsonl")
    assert "is not a regular file" in one_line(compare(folder / "a", tmp_path / "cut"), 1)
    shutil.copytree(folder / "b", tmp_path / "bare")
    (tmp_path / "bare/model.safetensors").unlink()
    assert "has kept no model yet" in one_line(compare(folder / "a", tmp_path / "bare", "--data", folder / "test.jsonl"), 1)
    shutil.copytree(folder / "b", tmp_path / "renamed")
    config = json.loads((tmp_path / "renamed/config.json").read_text())
    config["id2label"] = {str(i): name for i, name in enumerate(["x", "y", "z"])}
    config.pop("label2id", None)
    (tmp_path / "renamed/config.json").write_text(json.dumps(config))
    rows = [dict(text="goal", label=random.Random(0).choice(LABELS))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = compare(folder / "a", tmp_path / "renamed", "--data", tmp_path / "rows.jsonl")
    assert "have other labels: --data compares models of one task with the same labels" in one_line(done, 2)
    assert "no such" in one_line(compare(folder / "a", folder / "b", "--data", tmp_path / "missing.jsonl"), 1).lower()
