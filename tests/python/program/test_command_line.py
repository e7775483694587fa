"""The help of all commands, and the names that other programs and earlier versions give to options."""
import csv
import io
import json
import os
import pty
import re
import select
import subprocess
import time

import pytest
from support import PROGRAM, mezzo, records
from tiny_runs import STEPS, flags, run, trained, write_data

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


def test_files_that_are_named_one_by_one_have_no_dots_in_help():
    assert "--data FILE " in mezzo("compare", "--help").stdout and "--data FILE..." in mezzo("eval", "--help").stdout


def test_help_and_version_are_commands_too():
    assert "Show the version" in mezzo("help", "version").stdout and "Usage: mezzo help" in mezzo("help", "help").stdout
    done = run(["help", "trian"])
    assert done.returncode == 2 and done.stderr == "mezzo help: 'trian' is not a command. Did you mean 'train'?\n"
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
        lines = [f"{name[2:]} = {as_toml.get(value, json.dumps(value))}" for name, value in given.items()]
        (tmp_path / "run.toml").write_text("\n".join(lines) + "\n")
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
    ("--per_device_eval_batch_size 8", "leave it out: evaluation chooses its batches"),
    ("--deepspeed x", "use --zero-stage 1 with mezzo launch"),
    ("--report_to wandb", "leave it out: TensorBoard files are in OUTPUT/tensorboard"),
    ("--local_rank 0", "leave it out: mezzo launch sets the rank"),
    ("--eval_delay 10", "use --eval-every"),
])
def test_other_settings_of_hugging_face_are_answered(given, answer):
    done = run(["train", *given.split()])
    assert done.returncode == 2 and done.stderr == f"mezzo train: {given.split()[0]} is not an option of mezzo train; {answer}\n"


def test_a_file_with_such_a_setting_is_named_with_its_line(tmp_path):
    (tmp_path / "run.toml").write_text("epochs = 1\neval_delay = 10\n")
    done = run(["train", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and done.stderr.startswith(f"mezzo train: {tmp_path}/run.toml:2: --eval_delay is not an option") or \
        done.stderr.startswith(f"mezzo train: {tmp_path}/run.toml:2: --eval-delay is not an option"), done.stderr
    (tmp_path / "run.toml").write_text("epochs = 1\nper_device_train_batch_size = 0\n")
    done = run(["train", "--model", "x", "--train", "y", "--output", tmp_path / "z", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and done.stderr == f"mezzo train: {tmp_path}/run.toml:2: --batch-size is 0, expected at least 1\n"


@pytest.mark.parametrize("given, meant", [("--eval_step", "--eval-every"), ("--num_train_epoch", "--epochs"), ("--max-step", "--max-steps"), ("--output_file", "--output")])
def test_a_misspelled_name_is_guessed_among_all_names(given, meant):
    """The answer is the name here."""
    assert f"Did you mean '{meant}'?" in run(["predict" if meant == "--output" else "train", given, "3"]).stderr


@pytest.mark.parametrize("given", ["--lr_decay", "--no_eval", "--frobnicate"])
def test_a_name_that_means_something_else_is_not_guessed(given):
    assert run(["train", given, "3"]).stderr == f"mezzo train: {given} is not an option; see mezzo train --help\n"


def test_old_names_work_with_a_note(data, tmp_path):
    arguments = flags(data, tmp_path / "out", "--dev_fraction", "0.25", "--init-scale", 1024, "--precision", "fp16")
    del arguments[arguments.index("--dev"):arguments.index("--dev") + 2]
    done = trained(arguments)
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert (settings["stratify"], settings["dev-ratio"], settings["loss-scale"]) == ("true", "0.25", "dynamic:1024")
    assert done.stderr.count("mezzo train: --dev-fraction is --stratify --dev-ratio=0.25 now; the next version will not know the old name\n") == 1
    assert done.stderr.count("mezzo train: --init-scale is --loss-scale=dynamic:1024 now;") == 1
    assert records(tmp_path / "out", "step")[0]["loss_scale"] == 1024


@pytest.mark.parametrize("in_file, given, setting", [
    ("dry-run = true", ["--dry-run=false"], None),
    ("overwrite = true\ncalibrate = true", ["--calibrate=false"], ("calibrate", "false")),
    ("bf16 = true", ["--bf16", "False"], ("precision", "fp32")),
    ('precision = "fp32"', ["--bf16", "False"], ("precision", "fp32")),
    ("max-steps = 3", ["--max_steps", "-1", "--epochs", "0.5"], ("max-steps", "")),
])
def test_a_switch_that_is_off_wins_over_the_file(in_file, given, setting, data, tmp_path):
    (tmp_path / "run.toml").write_text(in_file + "\n")
    arguments = flags(data, tmp_path / "out")
    for flag in "--precision", "--max-steps":
        del arguments[arguments.index(flag):arguments.index(flag) + 2]
    trained([*arguments, "--config", tmp_path / "run.toml", *given])
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert setting is None or settings[setting[0]] == setting[1]


@pytest.mark.parametrize("given, in_file, precision", [
    ("--bf16 False --fp16 False", "", "fp32"),
    ("--bf16=false", "", "fp32"),
    ("--fp16 false", "", "fp32"),
    ("--bf16 False --fp16", "", "fp16"),
    ("--precision auto --bf16 False", "", "auto"),
    ("", "bf16 = false", "fp32"),
    ("--bf16 TRUE", "bf16 = false\nfp16 = false", "bf16"),
    ("--fp16", 'precision = "fp32"', "fp16"),
    ("--precision bf16 --precision fp32", "", "fp32"),
    ("--precision bf16 --bf16", "", "bf16"),
])
def test_switches_of_precision(given, in_file, precision, data, tmp_path):
    (tmp_path / "run.toml").write_text(in_file + "\n")
    arguments = flags(data, tmp_path / "out", "--max-steps", 1, "--config", tmp_path / "run.toml")
    del arguments[arguments.index("--precision"):arguments.index("--precision") + 2]
    trained([*arguments, *given.split()])
    assert json.loads((tmp_path / "out/run.json").read_text())["settings"]["precision"] == precision


@pytest.mark.parametrize("given, message", [
    ("train --fp16 --bf16", "--fp16 and --bf16 both set --precision; leave one of them out"),
    ("train --precision fp32 --fp16", "--precision and --fp16 both set --precision; leave one of them out"),
    ("train --save_strategy no --save_steps 500", "--save-strategy and --save-steps both set --save-every; leave one of them out"),
    ("train --eval_strategy best", "'best' is not a strategy of mezzo; leave it out: mezzo always keeps the best model"),
    ("train --config a --config b", "--config is given twice; leave one of them out"),
    ("predict --text a --text b", "--text is given twice; pass one text, or several as lines of stdin"),
    ("predict --text a --text-pair b --text-pair c", "--text-pair is given twice; pass one text, or several as lines of stdin"),
    ("predict --model x --data -", "--data -: leave it out: stdin is read without --data; a file of that name is ./-"),
    ("tokenize --model x --data -", "--data -: leave it out: stdin is read without --data; a file of that name is ./-"),
])
def test_one_thing_is_not_said_twice(given, message):
    done = run(given.split())
    assert done.returncode == 2 and done.stderr == f"mezzo {given.split()[0]}: {message}\n"


def test_a_command_of_transformers_trains_with_notes_about_what_changes_nothing(data, tmp_path):
    arguments = flags(data, tmp_path / "out")
    for flag in "--eval-every", "--save-every":
        del arguments[arguments.index(flag):arguments.index(flag) + 2]
    given = "--eval_strategy epoch --save_strategy no --report_to none --logging_steps 2 --logging_dir logs --gradient_checkpointing false"
    done = trained([*arguments, *given.split()])
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert (settings["eval-every"], settings["save-every"], settings["gradient-checkpointing"]) == (str(STEPS), "0", "false"), "steps of an epoch"
    notes = [line for line in done.stderr.splitlines() if "ignored" in line]
    assert notes == ["mezzo train: --report-to none is ignored: TensorBoard files are in OUTPUT/tensorboard",
                     "mezzo train: --logging-steps 2 is ignored: metrics.jsonl has every step",
                     "mezzo train: --logging-dir logs is ignored: TensorBoard files are in OUTPUT/tensorboard"]
    again = trained([*arguments, "--overwrite", *"--eval_strategy steps --eval_steps 3 --save_strategy epoch".split()])
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert (settings["eval-every"], settings["save-every"]) == ("3", str(STEPS))
    assert "mezzo train: --eval-strategy steps is ignored: --eval-every says how often\n" in again.stderr


def test_a_folder_with_a_space_is_quoted_in_the_next_command(data, tmp_path):
    done = trained(flags(data, tmp_path / "out dir", "--max-steps", 1))
    assert f"next: mezzo predict --model '{tmp_path}/out dir' --text '…', or mezzo serve --model '{tmp_path}/out dir'\n" in done.stdout


def test_a_switch_that_is_off_wins_over_a_run_json(data, tmp_path):
    trained(flags(data, tmp_path / "out", "--calibrate"))
    trained(["train", "--config", tmp_path / "out/run.json", "--output", tmp_path / "again", "--calibrate=false"])
    assert json.loads((tmp_path / "again/run.json").read_text())["settings"]["calibrate"] == "false"


# As the version before wrote them, without the settings that are the same today.
OLD_SETTINGS = {"epochs": "1", "dev-ratio": "0.08", "dev-fraction": "none", "allow-empty-classes": "false", "learning-rate": "3e-05", "max-grad-norm": "0",
                "schedule": "constant", "warmup-ratio": "0", "loss-scale": "dynamic", "init-scale": "65536", "eval-every": "50", "save-every": "0"}


@pytest.mark.parametrize("changed, meant, notes", [
    ({}, {"stratify": "false", "dev-ratio": "0.08", "loss-scale": "dynamic", "eval-every": "50", "schedule": "constant"}, 0),
    ({"dev-fraction": "0"}, {"stratify": "false", "dev-ratio": "0.08"}, 0),
    ({"dev-fraction": "0.25"}, {"stratify": "true", "dev-ratio": "0.25"}, 1),
    ({"init-scale": "1024"}, {"loss-scale": "dynamic:1024"}, 1),
    ({"loss-scale": "128"}, {"loss-scale": "128"}, 0),
    ({"allow-empty-classes": "true"}, {}, 1),
    ({"eval-every": "0"}, {"eval-every": "0"}, 0),
])
def test_a_run_json_of_the_version_before_trains_again(changed, meant, notes, data, tmp_path):
    trained(flags(data, tmp_path / "out", "--train", data / "train.jsonl", "--max-steps", 2))
    told = json.loads((tmp_path / "out/run.json").read_text())
    for name in "dev", "stratify", "labels", "encoding", "delimiter", "columns", "no-header", "lora-dropout", "adam-beta1", "adam-beta2", "adam-epsilon", "data-memory":
        told["settings"].pop(name)
    told["settings"] |= OLD_SETTINGS | changed
    (tmp_path / "old").mkdir()
    (tmp_path / "old/run.json").write_text(json.dumps(told))
    done = trained(["train", "--config", tmp_path / "old/run.json", "--output", tmp_path / "again"])
    settings = json.loads((tmp_path / "again/run.json").read_text())["settings"]
    assert {name: settings[name] for name in meant} == meant
    assert done.stderr.count("next version will not know the old name") == notes


def test_the_switch_for_empty_classes_is_ignored_with_a_note(data, tmp_path):
    done = trained(flags(data, tmp_path / "out", "--allow-empty-classes", "--max-steps", 1))
    assert done.stderr.count("mezzo train: --allow-empty-classes is ignored; use --labels; the next version will not know the old name\n") == 1


@pytest.mark.parametrize("lines", ['loss-scale = "dynamic"\ninit-scale = 1024', "init_scale = 1024"])
def test_an_old_first_loss_scale_counts_beside_a_dynamic_one(lines, data, tmp_path):
    (tmp_path / "run.toml").write_text(lines + '\nprecision = "fp16"\n')
    arguments = flags(data, tmp_path / "out", "--config", tmp_path / "run.toml")
    del arguments[arguments.index("--precision"):arguments.index("--precision") + 2]
    trained(arguments)
    assert records(tmp_path / "out", "step")[0]["loss_scale"] == 1024


@pytest.mark.parametrize("given, flag", [("--output_dir --overwrite", "--output_dir"), ("--output --overwrite", "--output"), ("--lr", "--lr"), ("--epochs --bf16", "--epochs")])
def test_a_flag_is_no_value(given, flag):
    done = run(["train", *given.split()])
    assert done.returncode == 2 and done.stderr == f"mezzo train: {flag} needs a value; see mezzo train --help\n"


def test_a_text_may_begin_as_a_flag_does(model):
    assert json.loads(mezzo("predict", "--model", model, "--text", "--goal").stdout)["text"] == "--goal"


@pytest.mark.parametrize("given, answer", [
    ("--eval_steps 0.1", "0.1 steps are a share of all steps in transformers; use --eval-every or --save-every, a share of an epoch"),
    ("--save_steps 0.1", "0.1 steps are a share of all steps in transformers; use --eval-every or --save-every, a share of an epoch"),
    ("--optim paged_adamw_8bit", "--optimizer 'paged_adamw_8bit' is not known: adamw, adam, sgd, lamb"),
    ("--mixed_precision fp8", "--precision 'fp8' is not known: fp32, bf16, fp16, auto"),
])
def test_values_of_hugging_face_that_mean_something_else_are_refused(given, answer, data, tmp_path):
    arguments = flags(data, tmp_path / "out")
    del arguments[arguments.index("--precision"):arguments.index("--precision") + 2]
    done = run([*arguments, *given.split()])
    assert done.returncode == 2 and answer in done.stderr


def test_no_mixed_precision_is_fp32(data, tmp_path):
    trained(flags(data, tmp_path / "out", "--mixed_precision", "no", "--group_by_length", "True"))
    settings = json.loads((tmp_path / "out/run.json").read_text())["settings"]
    assert (settings["precision"], settings["batching"]) == ("fp32", "grouped")


@pytest.mark.parametrize("text, message", [
    ("calibrate = true\nper_device_train_batch_size = 0\n", "2: --batch-size is 0, expected at least 1"),
    ("dev-fraction = 0.1\nkeep = 0\n", "2: --keep is 0, expected at least 1"),
    ("batch-size = 8\n\nbatch_size = 16\n", "3: 'batch_size' sets --batch-size, which {}:1 sets; leave one of them out"),
    ('output = "x"\noutput_dir = "y"\n', "2: 'output_dir' sets --output, which {}:1 sets; leave one of them out"),
    ("bf16 = true\nfp16 = true\n", "2: 'fp16' sets --precision, which {}:1 sets; leave one of them out"),
    ("lora_target_modules = [1, true]\n", "1: 'lora_target_modules' must be a string or a number"),
    ("seed = [1]\n", "1: 'seed' must be a string or a number"),
    ("bf16 = 1\n", "1: 'bf16' must be true or false"),
    ("keep = 1\nmetric = macro_f1\n", '2: the value of metric cannot be read; put text in quotes: metric = "macro_f1"'),
    ("train-dir = nonexistent  # later\n", '1: the value of train-dir cannot be read; put text in quotes: train-dir = "nonexistent"'),
    ("gradient-checkpointing = True\n", "1: the value of gradient-checkpointing cannot be read; write true in lower case: gradient-checkpointing = true"),
    ("calibrate = true\ncalibrate = true\n", "2: Error while parsing key-value pair: cannot redefine existing boolean 'calibrate'"),
    ("bf16 = False", "1: the value of bf16 cannot be read; write false in lower case: bf16 = false"),
    ('config = "t1.toml"\n', "1: 'config' is not a setting of mezzo train; leave it out"),
    ("help = true\n", "1: 'help' is not a setting of mezzo train; leave it out"),
    ("--epochs = 2\n", "1: '--epochs' is not a setting of mezzo train; write epochs, without dashes"),
])
def test_a_setting_is_named_by_file_and_line(text, message, data, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    done = run(["train", "--model", "x", "--train", "y", "--output", tmp_path / "z", "--config", tmp_path / "run.toml"])
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == f"mezzo train: {tmp_path}/run.toml:{message.format(tmp_path / 'run.toml')}", done.stderr
    assert done.stderr.count("\n") == 1 + ("dev-fraction" in text)


def test_arrays_of_names_are_joined(data, tmp_path):
    (tmp_path / "run.toml").write_text('labels = ["weather", "politics", "sport"]\n')
    trained(flags(data, tmp_path / "out", "--config", tmp_path / "run.toml"))
    assert list(json.loads((tmp_path / "out/config.json").read_text())["id2label"].values()) == ["weather", "politics", "sport"]


@pytest.mark.parametrize("name", ["--nproc_per_node", "--nproc-per-node", "--num_processes"])
def test_launch_knows_the_names_of_torchrun_and_accelerate(name):
    done = run(["launch", name, "1", "--", "tokenize", "--vocab", "nowhere.txt"])
    assert done.returncode != 2 and "nowhere.txt: cannot be read" in done.stderr
    done = run(["launch", "--nproc", "1", "--master_addr", "host", "--", "train"])
    assert done.returncode == 2 and done.stderr == "mezzo launch: --master_addr is not an option of mezzo launch; use --master HOST:PORT\n"
    done = run(["launch", "--standalone", "--nproc", "1", "--", "train"])
    assert done.returncode == 2 and done.stderr == "mezzo launch: --standalone is not an option of mezzo launch; leave it out: one node needs no --master\n"
    done = run(["launch", "--frobnicate", "--nproc", "1", "--", "train"])
    assert done.returncode == 2 and done.stderr == "mezzo launch: --frobnicate is not an option of mezzo launch. See mezzo launch --help\n"


def test_other_commands_know_the_names_that_they_have(model):
    assert json.loads(mezzo("predict", "--model_name_or_path", model, "--text", "goal", "--max_seq_length", 8).stdout)["text"] == "goal"
    assert "--train-file is not an option" in run(["predict", "--train-file", "x"]).stderr


def test_predictions_are_written_as_csv(model, tmp_path):
    texts = ["goal, team", 'a "law"', "two\nlines", "", "rain"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text, "id": i, "label": "x"}) + "\n" for i, text in enumerate(texts) if text))
    mezzo("predict", "--model", model, "--data", tmp_path / "texts.jsonl", "--output", tmp_path / "x.csv")
    written = (tmp_path / "x.csv").read_bytes()
    assert written.count(b"\r\n") == 5 and b'"a ""law"""' in written
    assert written.startswith(b"\xef\xbb\xbf"), "or Excel takes it for another encoding"
    rows = list(csv.DictReader(io.StringIO(written.decode("utf-8-sig"), newline="")))
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


@pytest.mark.parametrize("name, is_table", [("x.CSV", True), ("x.Jsonl", False), ("x.json", False), ("x.txt", False), ("x", False)])
def test_predictions_have_the_format_of_their_name(name, is_table, model, tmp_path):
    mezzo("predict", "--model", model, "--text", "goal", "--output", tmp_path / name)
    assert (tmp_path / name).read_text("utf-8-sig").startswith("text,label,score" if is_table else '{"text":"goal"')
    if is_table:
        assert len(mezzo("tokenize", "--model", model, "--data", tmp_path / name).stdout.splitlines()) == 1


@pytest.mark.parametrize("name", ["x.tsv", "x.csv.gz", "x.xlsx"])
def test_predictions_of_other_names_are_refused(name, tmp_path):
    done = run(["predict", "--model", "nowhere", "--text", "goal", "--output", tmp_path / name])
    assert done.returncode == 2 and done.stderr == f"mezzo predict: --output is '{tmp_path / name}', expected a name that ends in .jsonl or .csv\n"


def test_a_column_that_the_first_row_lacks_is_not_lost(model, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "goal"}\n{"text": "law", "id": 7}\n')
    done = run(["predict", "--model", model, "--data", tmp_path / "texts.jsonl", "--output", tmp_path / "x.csv"])
    assert done.returncode == 1 and "row 2 has the column id, which row 1 lacks. Pass an --output that ends in .jsonl." in done.stderr
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("command", ["predict", "tokenize"])
@pytest.mark.parametrize("flag", ["--encoding GB18030", "--delimiter ;", "--text-column body", "--no-header"])
def test_flags_about_data_files_are_refused_for_stdin(command, flag):
    done = subprocess.run([PROGRAM, command, "--model", "nowhere", *flag.split()], input="goal\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == f"mezzo {command}: {flag.split()[0]} needs --data\n"


def test_a_missing_data_file_is_named_with_the_nearest_one(model, tmp_path):
    (tmp_path / "test.csv").write_text("text,label\ngoal,sport\n")
    done = run(["eval", "--model", model, "--data", tmp_path / "test.cs"])
    assert done.returncode == 1 and f"No such file or directory. Did you mean '{tmp_path}/test.csv'?" in done.stderr


def read_until(terminal, wanted):
    said, end = b"", time.monotonic() + 60
    while wanted not in said:
        assert time.monotonic() < end, said
        if select.select([terminal], [], [], 1)[0]:
            said += os.read(terminal, 4096)
    return said


def test_on_a_terminal_predict_says_what_it_waits_for(model):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(PROGRAM, [PROGRAM, "predict", "--model", str(model)])
    read_until(terminal, b"type texts, one a line, and Ctrl-D at the end")
    os.write(terminal, b"goal\n")
    read_until(terminal, b'"text":"goal"')
    os.write(terminal, b"\x04")
    assert os.waitpid(pid, 0)[1] == 0
    piped = subprocess.run([PROGRAM, "predict", "--model", model], input="goal\n", capture_output=True, text=True, timeout=60)
    assert "Ctrl-D" not in piped.stderr
