"""The help of all commands, and the names that other programs and earlier versions give to options."""
import csv
import io
import json
import os
import pty
import re
import subprocess
import time

import pytest
from support import PROGRAM, mezzo, records
from tiny_runs import flags, run, trained, write_data

COMMANDS = re.findall(r"^  ([a-z][a-z0-9-]*) ", mezzo("--help").stdout, re.MULTILINE)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("command_line") / "data")


@pytest.fixture(scope="module")
def model(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("model") / "out"
    trained(flags(data, output))
    return output


def options(text):
    return re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize("flag", ["--help", "--help-all"])
def test_help_fits_80_columns(command, flag):
    text = mezzo(*command.split(), flag).stdout
    assert max(map(len, text.splitlines())) <= 80, [line for line in text.splitlines() if len(line) > 80]
    assert "\x1f" not in text and not re.search(r" $", text, re.MULTILINE)


def test_help_of_train_shows_the_options_that_most_people_need():
    text, everything = mezzo("train", "--help").stdout, mezzo("train", "--help-all").stdout
    shown, known = options(text), options(everything)
    assert 18 <= len(shown) <= 28 and set(shown) <= set(known) and len(known) > 80
    assert {"--model", "--train", "--dev", "--output", "--epochs", "--batch-size", "--learning-rate", "--metric"} <= set(shown)
    assert not {"--growth-interval", "--all-reduce", "--shares", "--balance"} & set(shown)
    assert f"--help-all shows {len(known) - len(shown)} more options." in text
    assert re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)[:4] == ["Data", "Recipe", "Precision", "Run"]
    unwrapped = re.sub(r"\s+", " ", text)
    assert "Usage: mezzo train --model MODEL --train FILE... --output DIR [options]" in text
    assert "--model MODEL folder of a model, or its name on the Hugging Face Hub" in unwrapped and unwrapped.count("[required]") == 3
    assert "(fp32, bf16, fp16, auto) [default: auto]" in unwrapped
    assert "--patience N " in unwrapped and "--dev FILE... " in unwrapped


def test_help_and_version_are_commands_too():
    assert mezzo("help").stdout == mezzo("--help").stdout
    assert mezzo("help", "train").stdout == mezzo("train", "--help").stdout
    assert mezzo("version").stdout == mezzo("--version").stdout


@pytest.mark.parametrize("name, metric", [("f1", "macro_f1"), ("eval_loss", "log_loss"), ("acuracy", "accuracy")])
def test_a_metric_of_another_name_is_answered_with_the_name_here(name, metric, data, model):
    done = run([*flags(data, model.parent / "none"), "--metric_for_best_model", name])
    assert done.returncode == 1 and f"Did you mean '{metric}'?" in done.stderr, done.stderr


HUGGING_FACE = {
    "--output_dir": "OUT", "--train_file": "TRAIN", "--validation_file": "DEV", "--num_train_epochs": "2", "--per_device_train_batch_size": "4",
    "--gradient_accumulation_steps": "2", "--max_seq_length": "16", "--lr_scheduler_type": "linear", "--warmup_ratio": "0.1", "--weight_decay": "0.02",
    "--adam_beta1": "0.8", "--adam_beta2": "0.99", "--adam_epsilon": "1e-7", "--max_grad_norm": "1", "--eval_steps": "2", "--save_steps": "3",
    "--save_total_limit": "1", "--metric_for_best_model": "eval_macro_f1", "--early_stopping_patience": "9", "--seed": "5", "--optim": "adamw_torch",
    "--max_train_samples": "20", "--label_smoothing_factor": "0.1", "--resume_from_checkpoint": "True", "--bf16": "True", "--gradient_checkpointing": None,
    "--fp16": "False", "--no_cuda": None,
}
MEANT = {"epochs": "2", "batch-size": "4", "grad-accumulation": "2", "max-length": "16", "schedule": "linear", "warmup-ratio": "0.1",
         "weight-decay": "0.02", "adam-beta1": "0.8", "adam-beta2": "0.99", "adam-epsilon": "1e-07", "max-grad-norm": "1", "eval-every": "2",
         "save-every": "3", "keep": "1", "metric": "macro_f1", "patience": "9", "seed": "5", "optimizer": "adamw", "limit": "20",
         "label-smoothing": "0.1", "resume": "auto", "precision": "bf16", "gradient-checkpointing": "true", "device": "cpu"}


@pytest.mark.parametrize("where", ["command line", "file"])
def test_names_of_hugging_face_are_understood(where, data, tmp_path):
    places = {"OUT": str(tmp_path / "out"), "TRAIN": str(data / "train.jsonl"), "DEV": str(data / "dev.jsonl")}
    given = {name: places.get(value, value) for name, value in HUGGING_FACE.items()}
    model = ["--model-config", data / "config.json", "--vocab", data / "vocab.txt", "--threads", 1]
    if where == "command line":
        done = trained(["train", *model, *[word for pair in given.items() for word in pair if word is not None]])
    else:
        as_toml = {None: "true", "True": "true", "False": "false"}
        lines = [f"{name[2:]} = {as_toml.get(value, json.dumps(value))}" for name, value in given.items() if name != "--resume_from_checkpoint"]
        (tmp_path / "run.toml").write_text("\n".join([*lines, 'resume = "auto"']) + "\n")
        done = trained(["train", *model, "--config", tmp_path / "run.toml"])
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert {name: settings[name] for name in MEANT} == MEANT
    assert "next version" not in done.stderr


def test_the_command_line_wins_over_a_file_under_any_name(data, tmp_path):
    (tmp_path / "run.toml").write_text("max_steps = 3\nper_device_train_batch_size = 2\n")
    arguments = flags(data, tmp_path / "out")
    del arguments[arguments.index("--max-steps"):arguments.index("--max-steps") + 2]
    trained([*arguments, "--config", tmp_path / "run.toml"])
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert settings["batch-size"] == "4" and len(records(tmp_path / "out", "step")) == 3


@pytest.mark.parametrize("given, answer", [
    ("--load_best_model_at_end", "leave it out: mezzo always keeps the best model"),
    ("--evaluation_strategy epoch", "use --eval-every"),
    ("--per_device_eval_batch_size 8", "leave it out: evaluation chooses its batches"),
    ("--logging_steps 10", "leave it out: metrics.jsonl has every step"),
    ("--deepspeed x", "use --zero-stage 1 with mezzo launch"),
])
def test_other_settings_of_hugging_face_are_answered(given, answer):
    done = run(["train", *given.split()])
    assert done.returncode == 2 and done.stderr == f"mezzo train: {given.split()[0]} is no option of mezzo train; {answer}\n"


def test_a_file_with_such_a_setting_is_named_with_its_line(tmp_path):
    (tmp_path / "run.toml").write_text("epochs = 1\nlogging_steps = 10\n")
    done = run(["train", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and done.stderr.startswith(f"mezzo train: {tmp_path}/run.toml:2: --logging_steps is no option") or \
        done.stderr.startswith(f"mezzo train: {tmp_path}/run.toml:2: --logging-steps is no option"), done.stderr
    (tmp_path / "run.toml").write_text("epochs = 1\nper_device_train_batch_size = 0\n")
    done = run(["train", "--model", "x", "--train", "y", "--output", tmp_path / "z", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and done.stderr == f"mezzo train: {tmp_path}/run.toml:2: --batch-size is 0, expected at least 1\n"


@pytest.mark.parametrize("given, meant", [("--eval_step", "--eval-steps"), ("--num_train_epoch", "--num-train-epochs"), ("--max-step", "--max-steps")])
def test_a_misspelled_name_is_guessed_among_all_names(given, meant):
    assert f"Did you mean '{meant}'?" in run(["train", given, "3"]).stderr


def test_old_names_work_with_a_note(data, tmp_path):
    arguments = flags(data, tmp_path / "out", "--dev_fraction", "0.25", "--init-scale", 1024, "--precision", "fp16")
    del arguments[arguments.index("--dev"):arguments.index("--dev") + 2]
    done = trained(arguments)
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert (settings["stratify"], settings["dev-ratio"], settings["loss-scale"]) == ("true", "0.25", "dynamic:1024")
    assert done.stderr.count("mezzo train: --dev-fraction is --stratify --dev-ratio=0.25 now; the next version will not know the old name\n") == 1
    assert done.stderr.count("mezzo train: --init-scale is --loss-scale=dynamic:1024 now;") == 1
    assert records(tmp_path / "out", "step")[0]["loss_scale"] == 1024


def test_other_commands_know_the_names_that_they_have(model):
    assert json.loads(mezzo("predict", "--model_name_or_path", model, "--text", "goal", "--max_seq_length", 8).stdout)["text"] == "goal"
    assert "--train-file is no option" in run(["predict", "--train-file", "x"]).stderr


def test_predictions_are_written_as_csv(model, tmp_path):
    texts = ["goal, team", 'a "law"', "two\nlines", "", "rain"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text, "id": i, "label": "x"}) + "\n" for i, text in enumerate(texts) if text))
    mezzo("predict", "--model", model, "--data", tmp_path / "texts.jsonl", "--output", tmp_path / "x.csv")
    written = (tmp_path / "x.csv").read_bytes()
    assert written.count(b"\r\n") == 5 and b'"a ""law"""' in written
    rows = list(csv.DictReader(io.StringIO(written.decode(), newline="")))
    said = [json.loads(line) for line in mezzo("predict", "--model", model, "--data", tmp_path / "texts.jsonl").stdout.splitlines()]
    assert list(rows[0]) == ["text", "label", "score", *[f"score_{name}" for name in said[0]["scores"]], "id", "columns.label"]
    for row, answer in zip(rows, said, strict=True):
        assert (row["text"], row["label"], float(row["score"])) == (answer["text"], answer["label"], answer["score"])
        assert {name: float(row[f"score_{name}"]) for name in answer["scores"]} == answer["scores"]
        assert row["id"] == str(answer["columns"]["id"]) and row["columns.label"] == "x"
    assert len(rows) == 4


def test_csv_has_no_place_for_logits(model, tmp_path):
    done = run(["predict", "--model", model, "--text", "goal", "--output", tmp_path / "x.csv", "--logits"])
    assert done.returncode == 2 and "--logits and --top-k are for JSON Lines; pass an --output that ends in .jsonl" in done.stderr


def test_on_a_terminal_predict_says_what_it_waits_for(model):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "predict", "--model", str(model)])
    said, end = b"", time.monotonic() + 60
    while b"Ctrl-D" not in said and time.monotonic() < end:
        said += os.read(terminal, 4096)
    assert b"type texts, one a line, and Ctrl-D at the end" in said
    os.write(terminal, b"goal\n")
    while b'"label"' not in said and time.monotonic() < end:
        said += os.read(terminal, 4096)
    assert b'"text":"goal"' in said
    os.write(terminal, b"\x04")
    assert os.waitpid(pid, 0)[1] == 0
    piped = subprocess.run([PROGRAM, "predict", "--model", model], input="goal\n", capture_output=True, text=True, timeout=60)
    assert "Ctrl-D" not in piped.stderr
