"""report.html against the run's files and its model's predictions."""
import ast
import html
import json
import re
import shlex
import subprocess
import sys
from collections import Counter

import pytest
from support import records
from tiny_runs import LABELS, WORDS, flags, model_of, trained, write_data


def table(page, heading):
    """Texts of the cells of each row below a heading."""
    section = re.search(rf"<section[^>]*><h[23]>{heading}.*?</section>", page, re.S)
    if section is None:
        return []
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", section[0], re.S)]
    return [[html.unescape(cell) for cell in row] for row in rows if row]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("report") / "data")


def report_of(data, output, *more):
    trained(flags(data, output, *more))
    return (output / "report.html").read_text()


def test_mistakes_are_those_of_the_model_the_surest_first(data, tmp_path):
    page = report_of(data, tmp_path / "run")
    rows = [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]
    said = [json.loads(line) for line in trained(["predict", "--model", tmp_path / "run", "--data", data / "dev.jsonl", "--precision", "fp32"]).stdout.splitlines()]
    wrong = [(-answer["score"], i) for i, (row, answer) in enumerate(zip(rows, said)) if row["label"] != answer["label"]]
    shown = table(page, "Most confident mistakes")[1:]
    assert len(shown) == min(20, len(wrong)) > 3, "a run whose model errs"
    assert {label for row in shown for label in row[1:3]} <= set(LABELS)
    scores = [float(row[3].removesuffix(" %")) / 100 for row in shown]
    assert scores == sorted(scores, reverse=True)
    for (text, label, predicted, score, place), (least, _) in zip(shown, sorted(wrong)):
        assert float(score.removesuffix(" %")) / 100 == pytest.approx(-least, abs=6e-4)
        assert any(place == f"dev.jsonl:{i + 1}" and rows[i]["text"] == text and rows[i]["label"] == label and said[i]["label"] == predicted for _, i in wrong)


def test_pairs_are_shown_whole_and_a_test_set_goes_before_dev(data, tmp_path):
    for name in "train", "dev":
        rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({**row, "text_pair": "rain " + name}) + "\n" for row in rows))
    page = report_of(data, tmp_path / "run", "--train", tmp_path / "train.jsonl", "--dev", tmp_path / "train.jsonl", "--test", tmp_path / "dev.jsonl")
    shown = table(page, "Most confident mistakes")[1:]
    assert shown and all(row[0].endswith(" | rain dev") for row in shown)


def rewrite(data, folder, change):
    """The data with each row changed."""
    folder.mkdir()
    for name in "train", "dev":
        rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(change(row)) + "\n" for row in rows))
    return ["--train", folder / "train.jsonl", "--dev", folder / "dev.jsonl"]


def predictions(output, dev):
    said = trained(["predict", "--model", output, "--data", dev, "--precision", "fp32"]).stdout.splitlines()
    return list(zip([json.loads(line) for line in dev.read_text().splitlines()], map(json.loads, said), strict=True))


def test_of_several_labels_the_surest_wrong_decision_counts(data, tmp_path):
    several = rewrite(data, tmp_path / "data", lambda row: {"text": row["text"], "label": [row["label"]] + ["short"] * (" " not in row["text"])})
    page = report_of(data, tmp_path / "run", "--task", "multi_label_classification", *several)
    wrong = []
    for i, (row, answer) in enumerate(predictions(tmp_path / "run", tmp_path / "data/dev.jsonl")):
        is_, said = set(row["label"]), set(answer["labels"])
        sure = [answer["scores"][name] if name in said else 1 - answer["scores"][name] for name in is_ ^ said]
        if sure:
            wrong.append((-max(sure), i, row["text"], is_, said))
    shown = table(page, "Most confident mistakes")[1:]
    assert len(shown) == min(20, len(wrong)) > 3
    for (text, label, predicted, score, place), (least, *_) in zip(shown, sorted(wrong)):
        assert re.fullmatch(r"dev\.jsonl:\d+", place)
        assert float(score.removesuffix(" %")) / 100 == pytest.approx(-least, abs=6e-4)
        names = lambda cell: set() if cell == "–" else set(cell.split("|"))
        assert any((text, names(label), names(predicted)) == tuple(rest) for _, _, *rest in wrong)


def test_a_mistaken_word_is_shown_among_its_neighbours(data, tmp_path):
    word_labels = dict(zip(WORDS, ["S-A", "O", "S-B", "O", "S-A", "S-B"]))
    def change(row):
        words = row["text"].split() * 4  # longer than the shown part, and than the part that the model reads
        return {"text": words, "label": [word_labels[word] if i % 3 else "O" for i, word in enumerate(words)]}
    page = report_of(data, tmp_path / "run", "--task", "token_classification", *rewrite(data, tmp_path / "data", change))
    wrong, count = set(), 0
    for row, answer in predictions(tmp_path / "run", tmp_path / "data/dev.jsonl"):
        for i, (is_, said) in enumerate(zip(row["label"], answer["labels"])):
            if said is not None and is_ != said:
                around = lambda part, cut: " ".join(part) if not cut else (f"… {' '.join(part)}" if cut == "before" else f"{' '.join(part)} …")
                before = around(row["text"][max(i - 8, 0):i], "before" if i > 8 else "")
                after = around(row["text"][i + 1:i + 9], "after" if len(row["text"]) > i + 9 else "")
                count += 1
                wrong.add((f"{before} <b>{row['text'][i]}</b> {after}", is_, said))
    shown = table(page, "Most confident mistakes")[1:]
    assert len(shown) == min(20, count) > 3 and {tuple(row[:3]) for row in shown} <= wrong
    scores = [float(row[3].removesuffix(" %")) / 100 for row in shown]
    assert scores == sorted(scores, reverse=True)


def test_notes_tell_of_cut_texts_and_of_the_data(data, tmp_path):
    page = report_of(data, tmp_path / "run", "--max-length", 4, "--dev", data / "train.jsonl")
    notes = re.search(r"<h2>Notes</h2>.*?</section>", page, re.S)[0]
    assert "truncated to 4 tokens" in notes and "24 training, 24 dev and 0 test texts" in notes
    assert "<li>the dev texts are the training file" in re.search(r'<b class="bad">Warnings</b>.*?</div>', page, re.S)[0]


def test_a_skipped_step_has_its_cause(data, tmp_path):
    page = report_of(data, tmp_path / "run", "--precision", "fp16", "--loss-scale", f"dynamic:{2.0**24}", "--max-steps", 30)
    skipped = [record["step"] for record in records(tmp_path / "run", "step") if record["skipped"]]
    shown = table(page, "Skipped steps")[1:]
    assert skipped and [int(row[0]) for row in shown] == skipped
    assert all("the initial scale was too high" in row[-1] for row in shown)
    assert table(report_of(data, tmp_path / "other"), "Skipped steps") == []


def test_the_parts_of_the_time_are_the_whole(data, tmp_path):
    page = report_of(data, tmp_path / "run")
    parts = table(page, "Time")
    of_step = ["forward", "backward", "update of the weights", "batches", "rest of the steps"]
    assert [row[0] for row in parts] == ["training steps", *of_step, "evaluations", "other"]
    share = {row[0]: float(row[2].removesuffix(" %")) for row in parts}
    assert share["training steps"] + share["evaluations"] + share["other"] == pytest.approx(100, abs=0.2)
    assert sum(share[name] for name in of_step) == pytest.approx(share["training steps"], abs=0.3), "each is rounded to 0.1"
    steps = records(tmp_path / "run", "step")
    seconds = sum(record["seconds"] for record in steps)
    for record in steps:
        assert list(record["parts"]) == ["batch", "forward", "backward", "update"]
        assert min(record["parts"].values()) > 0 and sum(record["parts"].values()) < record["seconds"]
    whole = 60 * records(tmp_path / "run", "end")[-1]["minutes"]
    assert share["training steps"] == pytest.approx(100 * seconds / whole, abs=0.1)
    forward = sum(record["parts"]["forward"] for record in steps)
    assert share["forward"] == pytest.approx(100 * forward / whole, abs=0.1)


def test_what_moves_by_itself_is_named(data, tmp_path):
    page = report_of(data, tmp_path / "run", "--precision", "fp16", "--loss-scale", f"dynamic:{2.0**24}", "--max-steps", 30, "--diagnose")
    regions = re.findall(r"<[^>]*tabindex=\"0\"[^>]*>", page)
    names = [re.search(r' role="region" aria-label="([^"]+)">$', region)[1] for region in regions]
    assert len(names) == len(set(names)) and {"Confusion matrix", "Skipped steps", "Gradients", "Values of Loss", "Text lengths"} <= set(names)
    assert not re.search(r"<th>[^<]", page), "each head of a table says what it is of"


def test_commands_train_the_model_again_and_use_it(data, tmp_path):
    output = tmp_path / "it's a run"
    report_of(data, output, "--label-smoothing", 0.1, "--calibrate")
    shown = commands_of(output)
    assert list(shown) == ["Command line", "Train this model again", "Label a text", "Label a file", "Serve the model", "Python, with transformers"]
    words = shlex.split(shown["Command line"])
    assert words[:2] == ["mezzo", "train"] and "--calibrate" in words and words[words.index("--label-smoothing") + 1] == "0.1"
    trained([*words[1:], "--overwrite"])
    trained(shlex.split(shown["Train this model again"])[1:])
    assert model_of(tmp_path / "it's a run-again") == model_of(output)
    assert shlex.split(shown["Label a text"])[:4] == ["mezzo", "predict", "--model", str(output)]
    predicted = json.loads(trained(shlex.split(shown["Label a text"])[1:]).stdout)
    printed = subprocess.run([sys.executable, "-c", shown["Python, with transformers"]], capture_output=True, text=True, timeout=300)
    assert printed.returncode == 0, printed.stderr
    assert {score["label"] for score in ast.literal_eval(printed.stdout)[0]} == set(predicted["scores"])


def commands_of(output):
    return {html.unescape(name): html.unescape(re.sub("<[^>]+>", "", code)) for name, code in re.findall(
        r'<h3>([^<]+)</h3><pre class="wrap">(.*?)</pre>', (output / "report.html").read_text(), re.S)}


def test_a_run_that_went_on_is_trained_again_from_its_start(data, tmp_path):
    output = tmp_path / "run"
    given = flags(data, output, "--pause-at", 0.5)
    trained(given)
    assert list(commands_of(output)) == ["Command line", "Train this model again", "Label a text", "Label a file", "Serve the model", "Python, with transformers"]
    trained([*given[:given.index("--pause-at")], "--resume", "auto"])
    shown = commands_of(output)
    assert not {"--resume", "--shares"} & set(shlex.split(shown["Command line"]))
    trained(shlex.split(shown["Train this model again"])[1:])
    assert model_of(tmp_path / "run-again") == model_of(output)


def test_a_stopped_run_without_a_model_has_no_commands_for_one(data, tmp_path):
    output = tmp_path / "run"
    given = flags(data, output, "--pause-at", 0.5, "--dev-ratio", 0, "--eval-every", 0)
    del given[given.index("--dev"):given.index("--dev") + 2]
    trained(given)
    assert not (output / "model.safetensors").exists()
    assert list(commands_of(output)) == ["Command line", "Train this model again"]


def test_training_data_is_counted(data, tmp_path):
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    page = report_of(data, tmp_path / "run")
    counts = {row[0]: int(row[1]) for row in table(page, "Training labels")[1:]}
    assert counts == dict(Counter(row["label"] for row in rows))
    assert sum(int(row[1]) for row in table(page, "Text lengths")[1:]) == len(rows)
