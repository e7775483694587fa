"""Files whose columns have other names than mezzo's: the same run, the same answers."""
import csv
import gzip
import json
import subprocess

import pytest
from support import PROGRAM
from tiny_runs import flags, losses_of, model_of, run, trained, write_data

COLUMNS = ["--text-column", "question one", "--pair-column", "q2", "--label-column", "is_duplicate"]


def rows_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["text"], other["text"], row["label"]) for row, other in zip(rows, rows[1:] + rows[:1])]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Pairs of texts under mezzo's names in JSON, and under others in CSV among columns that have mezzo's."""
    plain, named = (write_data(tmp_path_factory.mktemp(name)) for name in ("plain", "named"))
    for name in ("train", "dev"):
        rows = rows_of(plain / f"{name}.jsonl")
        (plain / f"{name}.jsonl").write_text("".join(json.dumps(dict(text=a, text_pair=b, label=y)) + "\n" for a, b, y in rows))
        (named / f"{name}.jsonl").unlink()
        with open(named / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", "q2", "text", "question one", "is_duplicate"])
            writer.writerows(["0.5", b, "goal", a, y] for a, b, y in rows)
    return plain, named


def named_flags(data, output, *more):
    return [str(flag).replace("train.jsonl", "train.csv").replace("dev.jsonl", "dev.csv") for flag in flags(data, output, *COLUMNS, *more)]


def test_a_run_is_the_same_to_the_bit(folders, tmp_path):
    plain, named = folders
    trained(flags(plain, tmp_path / "plain"))
    trained(named_flags(named, tmp_path / "named"))
    assert losses_of(tmp_path / "named") == losses_of(tmp_path / "plain")
    assert model_of(tmp_path / "named") == model_of(tmp_path / "plain")
    for command, columns in ((["eval", "--model", tmp_path / "plain"], COLUMNS), (["tokenize", "--model", tmp_path / "plain"], COLUMNS[:4])):
        expected = trained([*command, "--data", plain / "dev.jsonl"]).stdout
        assert trained([*command, "--data", named / "dev.csv", *columns]).stdout == expected and expected


def test_other_columns_are_carried_through(folders, tmp_path):
    plain, named = folders
    trained(flags(plain, tmp_path / "out"))
    predict = ["predict", "--model", tmp_path / "out", "--data"]
    lines = [json.loads(line) for line in trained([*predict, plain / "dev.jsonl"]).stdout.splitlines()]
    others = [json.loads(line) for line in trained([*predict, named / "dev.csv", *COLUMNS[:4]]).stdout.splitlines()]
    rows = [json.loads(line) for line in (plain / "dev.jsonl").read_text().splitlines()]
    assert [line.pop("columns") for line in lines] == [{"label": row["label"]} for row in rows]
    with open(named / "dev.csv", newline="") as file:
        read = [{name: value for name, value in row.items() if name not in COLUMNS[1:4:2]} for row in csv.DictReader(file)]
    assert [line.pop("columns") for line in others] == read and others == lines


def test_several_files_are_one(folders, tmp_path):
    plain, _ = folders
    lines = (plain / "train.jsonl").read_text().splitlines(keepends=True)
    parts = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl"]
    for path, part in zip(parts, (lines[:5], lines[5:11], lines[11:])):
        write = gzip.open if path.suffix == ".gz" else open
        with write(path, "wt") as file:
            file.writelines(part)
    trained(flags(plain, tmp_path / "one"))
    trained(flags(plain, tmp_path / "several", "--train", *parts))
    given = flags(plain, tmp_path / "file")
    at = given.index("--train")
    (tmp_path / "run.toml").write_text(f"train = {json.dumps([str(path) for path in parts])}\nseed = 1\n")
    trained([*given[:at], *given[at + 2:], "--config", tmp_path / "run.toml"])
    assert model_of(tmp_path / "several") == model_of(tmp_path / "file") == model_of(tmp_path / "one")
    (tmp_path / "run.toml").write_text('train = ["nowhere.jsonl", "nor here.jsonl"]\n')
    trained(flags(plain, tmp_path / "flags", "--config", tmp_path / "run.toml"))
    assert model_of(tmp_path / "flags") == model_of(tmp_path / "one"), "flags win"
    predict = ["predict", "--model", tmp_path / "one", "--data"]
    assert trained([*predict, *parts]).stdout == trained([*predict, plain / "train.jsonl"]).stdout
    (tmp_path / "c.jsonl").write_text('{"text": "a", "label": "sport"}\n')
    done = run(flags(plain, tmp_path / "out", "--train", *parts))
    assert done.returncode == 1 and "c.jsonl:1: row 1: the row has no text_pair where" in done.stderr
    (tmp_path / "run.toml").write_text('train = ["a.jsonl", 3]\n')
    done = run([*given[:at], *given[at + 2:], "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and "run.toml:1: 'train' must be a string or an array of strings" in done.stderr


@pytest.mark.parametrize("command, more", [("train", []), ("eval", ["--data"]), ("predict", ["--data"])])
def test_files_are_named_once(command, more, folders, tmp_path):
    plain, _ = folders
    flag = more[0] if more else "--train"
    base = [PROGRAM, command, "--model", plain, *([] if more else ["--output", tmp_path / "out"])]
    for given, message in [([flag, plain / "dev.jsonl", flag, plain / "train.jsonl"], f"{flag} is given twice; pass all files after one {flag}"),
                           ([flag, "--threads", 1], f"{flag} needs a value"), ([flag], f"{flag} needs a value")]:
        done = subprocess.run(list(map(str, [*base, *given])), capture_output=True, text=True)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    (tmp_path / "run.toml").write_text("train = []\n")
    done = run(["train", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and "run.toml:1: 'train' is an empty array" in done.stderr


def test_texts_may_be_in_the_column_of_labels_where_none_are_read(folders):
    plain, _ = folders
    said = trained(["tokenize", "--vocab", plain / "vocab.txt", "--data", plain / "dev.jsonl", "--text-column", "label"]).stdout
    assert len(said.splitlines()) == 30


@pytest.mark.parametrize("more, status, message", [
    (["--text-column", "x"], 1, "train.jsonl:1: row 1: the row has no key 'x' among"),
    (["--pair-column", "x"], 1, "train.jsonl:1: row 1: the row has no key 'x' among"),
    (["--text-column", "label"], 2, "--label-column 'label' must be different columns, but two have one name"),
    (["--text-column", ""], 2, "--text-column"),
])
def test_what_cannot_be_meant_is_refused(more, status, message, folders, tmp_path):
    done = run(flags(folders[0], tmp_path / "out", *more))
    assert done.returncode == status and message in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
