"""`mezzo train --config run.json`: the same run again, and the message if that is not possible."""
import json

import pytest
from support import records
from tiny_runs import flags, model_of, run, trained, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("tiny data"))  # a space, as in people's folders


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """Switches, numbers, no number, a list of files, and a precision that is looked for; resumed, which the other is not."""
    out = tmp_path_factory.mktemp("runs") / "first"
    more = data / "more.jsonl"
    more.write_text((data / "dev.jsonl").read_text())
    given = [*flags(data, out), "--train", data / "train.jsonl", more, "--dropout", 0.2, "--seed", 7, "--calibrate", "--precision", "auto",
             "--schedule", "linear", "--label-smoothing", 0.1]
    trained([*given, "--pause-at", 0.5])
    trained([*given, "--resume", "auto"])
    return out


def again(run_json, *more):
    return run(["train", "--config", run_json, *more])


def test_the_same_bits(first, tmp_path):
    done = again(first / "run.json", "--output", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert "run.json" not in done.stderr + done.stdout, "nothing to warn of"
    assert model_of(tmp_path / "again") == model_of(first)
    assert [record["loss"] for record in records(tmp_path / "again", "step")] == [record["loss"] for record in records(first, "step")]
    settings = [json.loads((out / "run.json").read_text())["settings"] for out in (first, tmp_path / "again")]
    assert {name for name, value in settings[0].items() if settings[1][name] != value} == {"output", "precision", "resume"}
    assert len(settings[0]["train"]) == 2, "an array: names may hold spaces"


def test_by_other_ranks_it_is_the_same_run(data, tmp_path):
    """Of two ranks, again by one: the sums of two gradients are the same in any order."""
    two, one = tmp_path / "two", tmp_path / "one"
    trained(["launch", "--nproc", 2, "--", *flags(data, two)])
    done = again(two / "run.json", "--output", one)
    assert done.returncode == 0 and "run.json" not in done.stderr, done.stderr
    assert "2 shares of each batch on 1 rank" in done.stderr
    assert model_of(one) == model_of(two)


def test_flags_win_and_it_says_what_that_makes_of_it(first, tmp_path):
    done = again(first / "run.json", "--output", tmp_path / "again", "--seed", 8)
    assert f"warning: this run differs from {first}/run.json: seed was '7', is now '8'" in done.stderr + done.stdout
    assert model_of(tmp_path / "again") != model_of(first)


def test_other_data_are_told(first, data, tmp_path):
    lines = (data / "train.jsonl").read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join(lines[1:]) + "\n")
    done = again(first / "run.json", "--output", tmp_path / "again", "--train", tmp_path / "train.jsonl")
    assert f"differs from {first}/run.json: training data as tokens was '54 texts of hash " in done.stderr + done.stdout


def test_another_machine_is_told(first, tmp_path):
    told = json.loads((first / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(told | dict(environment=told["environment"] | {"LibTorch": "1.0", "threads": "64"})))
    done = again(tmp_path / "run.json", "--output", tmp_path / "again", "--dry-run")
    assert f"warning: results may not be bit-identical to {tmp_path}/run.json: LibTorch was '1.0', is now '" in done.stderr + done.stdout
    assert "threads was" not in done.stderr + done.stdout, "which change no numbers"


def test_its_own_folder_is_not_replaced(first):
    before = model_of(first)
    done = again(first / "run.json")
    assert done.returncode == 1 and "--overwrite" in done.stderr, done.stderr
    assert model_of(first) == before


@pytest.mark.parametrize("text, message", [
    ("", "run.json"),
    ("[]", "run.json"),
    ("{}", "is not a run.json of mezzo train"),
    ('{"environment": {"mezzo": "1"}}', "is not a run.json of mezzo train"),
    ('{"environment": {"mezzo": "1"}, "settings": {"train": [1]}}', "run.json: 'train' must be a string, a number, true, false, or an array of strings"),
    ('{"environment": {"mezzo": "1"}, "settings": {"seed": null}}', "run.json: 'seed' must be a string, a number, true, false, or an array of strings"),
    ('{"environment": {"mezzo": "1"}, "settings": {"seed": ["1", "2"]}}', "run.json: 'seed' must be a string or a number"),
    ('{"environment": {"mezzo": "1"}, "settings": {"sead": 1}}', "run.json: 'sead' is not a setting of mezzo train. Did you mean 'seed'?"),
    ('{"environment": {"mezzo": "1"}, "settings": {"sead": "1"}}', "run.json: 'sead' is not a setting of mezzo train. Did you mean 'seed'?"),
    ('{"environment": {"mezzo": "1"}, "settings": {"seed": "-1"}}', "run.json: 'seed' is '-1', it must be"),
    ('{"environment": {"mezzo": "1"}, "settings": {"calibrate": "yes"}}', "run.json: 'calibrate' must be true or false"),
    ('{"environment": {"mezzo": "1"}, "settings": {"train": []}}', "run.json: 'train' is an empty array"),
    ('{"environment": {"mezzo": "1"}, "settings": {"batch-size": "0", "model": "m", "train": "t"}}', "run.json: --batch-size is 0, "),
])
def test_a_file_that_is_none(text, message, tmp_path):
    (tmp_path / "run.json").write_text(text)
    done = again(tmp_path / "run.json", "--output", tmp_path / "out")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_run_json_may_be_edited_with_numbers_and_booleans(first, tmp_path):
    told = json.loads((first / "run.json").read_text())
    told["settings"] |= {"calibrate": True, "stratify": False, "seed": 9, "learning-rate": 0.01}
    (tmp_path / "run.json").write_text(json.dumps(told))
    done = again(tmp_path / "run.json", "--output", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "again/run.json").read_text())["settings"]
    assert [settings[name] for name in ("calibrate", "stratify", "seed", "learning-rate")] == ["true", "false", "9", "0.01"]


def test_a_json_file_of_something_else(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    done = again(tmp_path / "adapter_config.json", "--output", tmp_path / "out")
    assert done.returncode == 2 and done.stderr == (
        f"mezzo train: {tmp_path}/adapter_config.json: is not a run.json of mezzo train; name the run.json of a run, or a TOML file of settings\n")


def test_one_that_is_not_there(tmp_path):
    done = again(tmp_path / "run.json")
    assert done.returncode == 2 and "run.json: cannot be read: No such file or directory" in done.stderr
