"""The program `mezzo` by its contract: files, records, exit statuses, messages, resuming."""
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import classification_report
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from support import MINILM, PROGRAM, mezzo, random_bert, records
from transformers import AutoTokenizer, BertForSequenceClassification

LABELS = ["sport", "politics", "weather"]
WORDS = "goal team law vote rain storm".split()


def make_rows(count, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.randrange(3)
        words = rng.choices(WORDS, weights=[6 if i // 2 == label else 1 for i in range(6)], k=rng.randint(1, 12))
        rows.append((" ".join(words), LABELS[label]))
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, count in ("train", 300), ("dev", 60), ("test", 50):
        lines = [json.dumps({"text": t, "label": l}) for t, l in make_rows(count, seed=count)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    model, _ = random_bert(folder, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    model.bert.save_pretrained(folder)  # the encoder alone, so that the data's labels count
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    return folder


def train_flags(small, data, output, *more):
    return ["train", "--recipe", "reference", "--model", small, "--train", data / "train.jsonl", "--dev", data / "dev.jsonl", "--output", output,
            "--learning-rate", "1e-3", "--precision", "fp32", *more]


@pytest.fixture(scope="module")
def run(small, data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "out"
    done = mezzo(*train_flags(small, data, output, "--test", data / "test.jsonl", "--epochs", 6, "--eval-every", 10,
                              "--batch-size", 16, "--schedule", "cosine", "--warmup-ratio", 0.1))
    return output, done


def test_a_run_leaves_the_promised_files_and_records(run):
    output, done = run
    assert {path.name for path in output.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "metrics.jsonl", "report.html",
        "run.json", "tensorboard"}
    steps, evals, ends = (records(output, event) for event in ("step", "eval", "end"))
    assert [record["step"] for record in steps] == list(range(1, 115))
    assert list(steps[0]) == ["event", "step", "epoch", "loss", "lr", "grad_norm", "loss_scale", "skipped", "samples",
                              "tokens", "seconds", "parts"]
    assert sum(record["samples"] for record in steps) == 6 * 300
    assert steps[-1]["epoch"] == pytest.approx(6)
    assert [record["step"] for record in evals[:-1]] == [*range(10, 115, 10), 114]
    assert [record["split"] for record in evals] == ["dev"] * 12 + ["test"]
    keys = ["event", "step", "split", "loss", "accuracy", "macro_f1", "seconds", "majority_baseline"]
    kept = lambda record: [key for key in record if key != "never_predicted"]  # in the records that have such labels
    assert [kept(record) for record in evals] == [keys] * 12 + [[*keys, "final"]]
    assert [list(record) for record in ends] == [["event", "steps", "minutes", "samples_per_second", "tokens_per_second",
                                                  "peak_memory_bytes", "best_step"]]
    settings = json.loads((output / "run.json").read_text())
    assert settings["finished"] is True and settings["settings"]["learning-rate"] == "0.001"
    assert (settings["status"], settings["steps"]) == ("finished", 114)
    assert evals[-1]["accuracy"] > 0.6, "three classes that the words tell apart"
    assert re.search(r"^[\d.]+ (s|min.*), [\d.]+ samples/s, ", done.stdout, re.M)


def test_the_final_evaluation_names_the_step_of_its_model_and_stays_out_of_the_curves(run):
    output, done = run
    *dev, final = records(output, "eval")
    best = max(dev, key=lambda record: (record["accuracy"], -record["loss"]))
    assert final["final"] is True and final["split"] == "test" and final["step"] == best["step"]
    settings = json.loads((output / "run.json").read_text())
    assert (settings["best_step"], settings["best_accuracy"]) == (best["step"], best["accuracy"])
    assert records(output, "end")[0]["best_step"] == best["step"]
    of = rf"test, model of step {best['step']}, the best on dev with accuracy {best['accuracy']:.4f}"
    assert re.search(rf"^{of}:\n +precision +recall +f1-score +support$", done.stdout, re.M)
    assert f"model of step {best['step']}: test loss {final['loss']:.4f}, accuracy" in done.stderr
    page = (output / "report.html").read_text()
    assert f"<h2>Quality of test, model of step {best['step']}</h2>" in page
    assert re.search(r"<h1>small\d+ trained on data\d+/train\.jsonl</h1>", page)
    board = EventAccumulator(str(output / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    assert [point.step for point in board.Scalars("dev/accuracy")] == [record["step"] for record in dev]
    assert [point.step for point in board.Scalars("final_test/accuracy")] == [best["step"]]
    assert "test/accuracy" not in board.Tags()["scalars"]


def test_without_test_texts_the_final_evaluation_repeats_the_best_one_on_dev(small, data, tmp_path):
    done = mezzo(*train_flags(small, data, tmp_path / "out", "--max-steps", 12, "--eval-every", 3))
    *dev, final = records(tmp_path / "out", "eval")
    assert [record["step"] for record in dev] == [3, 6, 9, 12], "one point a step"
    (same,) = [record for record in dev if record["step"] == final["step"]]
    assert {key: final[key] for key in ("split", "accuracy", "macro_f1", "loss")} == {
        key: same[key] for key in ("split", "accuracy", "macro_f1", "loss")}
    assert f"dev, model of step {final['step']}, the best on dev" in done.stdout
    mezzo("train", "--model", small, "--train", data / "train.jsonl", "--dev-ratio", 0, "--test", data / "test.jsonl",
          "--output", tmp_path / "no_dev", "--max-steps", 3)
    (final,) = records(tmp_path / "no_dev", "eval")
    assert final["step"] == 3 and records(tmp_path / "no_dev", "end")[0]["best_step"] is None


def test_the_best_dev_model_is_kept_and_transformers_agrees_with_it(run, data):
    output, _ = run
    best = max(record["accuracy"] for record in records(output, "eval") if record["split"] == "dev")
    rows = [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]
    model, info = BertForSequenceClassification.from_pretrained(output, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(output)
    with torch.no_grad():
        expected = model.eval()(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits
    labels = [model.config.id2label[i] for i in expected.argmax(1).tolist()]
    assert sum(l == row["label"] for l, row in zip(labels, rows)) / len(rows) == best

    done = mezzo("predict", "--model", output, "--data", data / "dev.jsonl", "--logits", "--precision", "fp32")
    mine = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(mine[0]) == ["text", "label", "score", "scores", "logits", "columns"]
    assert [row["text"] for row in mine] == [row["text"] for row in rows]
    assert [row["label"] for row in mine] == labels
    torch.testing.assert_close(torch.tensor([row["logits"] for row in mine]), expected, rtol=0, atol=1e-5)
    scores = torch.tensor([[row["scores"][model.config.id2label[i]] for i in range(3)] for row in mine])
    torch.testing.assert_close(scores, expected.softmax(1), rtol=0, atol=1e-5)
    assert all(row["score"] == max(row["scores"].values()) == row["scores"][row["label"]] for row in mine)


def test_eval_reports_as_scikit_learn_does(run, data):
    output, _ = run
    done = mezzo("eval", "--model", output, "--data", data / "test.jsonl", "--precision", "fp32")
    names = list(json.loads((output / "config.json").read_text())["id2label"].values())
    assert names == sorted(LABELS)
    rows = [json.loads(line) for line in (data / "test.jsonl").read_text().splitlines()]
    predicted = [json.loads(line)["label"] for line in
                 mezzo("predict", "--model", output, "--data", data / "test.jsonl", "--precision", "fp32").stdout.splitlines()]
    text = classification_report([row["label"] for row in rows], predicted, labels=names, zero_division=0)
    assert done.stdout.split("\n\n", 1)[1] == text
    as_json = json.loads(mezzo("eval", "--model", output, "--data", data / "test.jsonl", "--precision", "fp32", "--json").stdout)
    accuracy = sum(p == row["label"] for p, row in zip(predicted, rows)) / len(rows)
    assert as_json["accuracy"] == pytest.approx(accuracy)
    final = records(output, "eval")[-1]
    assert as_json["loss"] == pytest.approx(final["loss"], abs=1e-5) and final["accuracy"] == pytest.approx(accuracy)


def test_predict_takes_a_text_or_lines_of_stdin_and_writes_a_file(run, tmp_path):
    output, _ = run
    one = mezzo("predict", "--model", output, "--text", "goal team").stdout
    assert json.loads(one)["label"] == "sport"
    lines = mezzo("predict", "--model", output, stdin="goal team\n\nrain storm rain\r\n").stdout.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["goal team", "", "rain storm rain"]
    mezzo("predict", "--model", output, "--text", "goal team", "--output", tmp_path / "p.jsonl")
    assert (tmp_path / "p.jsonl").read_text() == one


def test_predict_reads_as_many_tokens_as_the_model_was_trained_with(run):
    output, _ = run
    assert AutoTokenizer.from_pretrained(output).model_max_length == 128
    text = "goal " * 200
    default, longer = mezzo("predict", "--model", output, "--text", text), mezzo("predict", "--model", output, "--text", text, "--max-length", 202)
    assert default.stderr == "1 of 1 texts truncated to 128 tokens\n" and longer.stderr == ""
    assert default.stdout == mezzo("predict", "--model", output, "--text", text, "--max-length", 128).stdout != longer.stdout


def test_tokenize_prints_ids_that_transformers_gives(small):
    texts = ["Hello, wörld!", "", "中文 [MASK] text"]
    tokenizer = AutoTokenizer.from_pretrained(small)
    done = mezzo("tokenize", "--model", small, stdin="\n".join(texts) + "\n")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"input_ids": tokenizer(t)["input_ids"]} for t in texts]
    assert mezzo("tokenize", "--vocab", MINILM / "vocab.txt", stdin="a b\n").stdout == '{"input_ids":[101,1037,1038,102]}\n'


def test_ops_lists_the_policies():
    entries = json.loads(mezzo("ops", "--policy", "cuda", "--json").stdout)
    low_norms = json.loads(mezzo("ops", "--policy", "norms_stay_low", "--json").stdout)
    assert {e["op"] for e in entries} - {e["op"] for e in low_norms} == {f"aten::{op}" for op in ("layer_norm", "native_layer_norm", "rms_norm")}
    assert len(entries) == 119 and {"op": "aten::mm", "policy": "lower_precision_fp"} in entries
    assert re.search(r"^fp32 +aten::mse_loss$", mezzo("ops", "--policy", "cpu").stdout, re.M)


def test_ops_lists_the_policies_of_every_device():
    entries = json.loads(mezzo("ops", "--json").stdout)
    for device in ("cpu", "cuda"):
        alone = json.loads(mezzo("ops", "--policy", device, "--json").stdout)
        assert [{"op": e["op"], "policy": e["policy"]} for e in entries if device in e["devices"]] == alone
    lines = mezzo("ops").stdout.splitlines()
    assert [line.split() for line in lines] == [[e["policy"], *e["devices"], e["op"]] for e in entries]
    assert "fp32                  cuda      aten::layer_norm" in lines and "lower_precision_fp    cpu cuda  aten::mm" in lines


def test_settings_may_stand_in_a_file_and_flags_win(small, data, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f'model = "{small}"\ntrain = "{data / "train.jsonl"}"\nmax-steps = 3\nlearning_rate = 0.25\nquiet = true\n')
    done = mezzo("train", "--config", file, "--output", tmp_path / "out", "--max-steps", 2)
    assert done.stdout == "" and done.stderr == ""
    steps = records(tmp_path / "out", "step")
    assert len(steps) == 2 and steps[0]["lr"] == 0.25


def sha(folder):
    return hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()


def start(arguments):
    return subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_steps(output, count):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        path = Path(output) / "metrics.jsonl"
        if path.exists() and path.read_text().count('"step"') >= count:
            return
        time.sleep(0.01)
    raise AssertionError("the run does not get on")


@pytest.mark.parametrize("precision, masters", [("fp32", False), ("fp16", False), ("bf16", True)])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGKILL"])
def test_a_run_that_was_stopped_resumes_to_the_bit(small, data, tmp_path, how, precision, masters):
    def flags(output):
        more = ["--precision", precision, "--epochs", 4, "--batch-size", 4, "--grad-accumulation", 2, "--eval-every", 20,
                "--save-every", 15, "--schedule", "linear", "--max-grad-norm", 1, "--loss-scale", f"dynamic:{2.0**20}",
                "--growth-interval", 20] + ["--master-weights"] * masters
        return train_flags(small, data, output, *more)

    mezzo(*flags(tmp_path / "whole"))
    process = start(flags(tmp_path / "cut"))
    wait_for_steps(tmp_path / "cut", 50)
    process.send_signal(getattr(signal, how))
    _, stderr = process.communicate()
    assert process.returncode == {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9}[how], stderr
    if how != "SIGKILL":
        stopped = int(re.search(r"stopped after step (\d+); go on with --resume auto", stderr)[1])
        assert (tmp_path / f"cut/checkpoints/step-{stopped}/manifest.json").exists()
        assert f"This run was stopped after step {stopped} of 152" in (tmp_path / "cut/report.html").read_text()
        run = json.loads((tmp_path / "cut/run.json").read_text())
        assert (run["status"], run["steps"], run["finished"]) == ("stopped", stopped, False)
    mezzo(*flags(tmp_path / "cut"), "--resume", "auto")

    assert sha(tmp_path / "cut") == sha(tmp_path / "whole")
    assert "This run was" not in (tmp_path / "cut/report.html").read_text()
    timing = {"seconds", "parts"}
    for event in "step", "eval":
        whole, cut = ([{k: v for k, v in record.items() if k not in timing} for record in records(tmp_path / name, event)]
                      for name in ("whole", "cut"))
        assert cut == whole
    assert len(list((tmp_path / "cut/checkpoints").iterdir())) <= 2, "--keep 2"


def test_damaged_checkpoints_are_passed_over_and_foreign_ones_refused(small, data, tmp_path):
    output = tmp_path / "out"
    flags = train_flags(small, data, output, "--max-steps", 20, "--save-every", 5, "--keep", 3)
    mezzo(*flags)
    (output / "run.json").unlink()  # as if it had not finished
    newest = output / "checkpoints/step-20/weights.safetensors"
    contents = bytearray(newest.read_bytes())
    contents[len(contents) // 2] ^= 1
    newest.write_bytes(contents)
    (output / "checkpoints/step-15/optimizer.safetensors").unlink()
    whole = sha(output)
    done = mezzo(*flags, "--resume", "auto")
    assert "step-20/weights.safetensors: is damaged" in done.stderr and "resumed after step 10" in done.stderr
    assert sha(output) == whole
    for checkpoint, message in [("step-5", "is not a checkpoint folder"), ("step-10", "seed was '123', is now '124'")]:
        done = mezzo(*flags, "--resume", output / "checkpoints" / checkpoint, "--seed", 124, check=False)
        assert done.returncode == 1 and message in done.stderr, done.stderr


def one_line(done, status):
    assert done.returncode == status, (done.returncode, done.stderr)
    assert done.stderr.count("\n") == 1 and done.stdout == "", done
    return done.stderr.strip()


@pytest.mark.parametrize("change, status, message", [
    (["--batch-size", "0"], 2, "mezzo train: --batch-size is 0, expected at least 1"),
    (["--batch-size", 2**63 - 1], 2, "mezzo train: --batch-size is 9223372036854775807, expected at most 1000000"),
    (["--grad-accumulation", 2**62], 2, "mezzo train: --grad-accumulation is 4611686018427387904, expected at most 1000000"),
    (["--max-steps", 2**63 - 1], 2, "mezzo train: --max-steps is 9223372036854775807, expected at most 1000000000"),
    (["--max-length", 2**40], 2, "mezzo train: --max-length is 1099511627776, expected at most 1000000"),
    (["--keep", 2**63 - 1], 2, "mezzo train: --keep is 9223372036854775807, expected at most 1000000"),
    (["--epochs", "1e300"], 2, "mezzo train: --epochs is 1e+300, expected a number from 1e-06 to 1e+06"),
    (["--batch-size", "many"], 2, "mezzo train: --batch-size 'many' is neither 'auto' nor a whole number"),
    (["--batch-size", "auto8"], 2, "mezzo train: --batch-size 'auto8' is neither 'auto' nor a whole number"),
    (["--dry-run=maybe"], 2, "mezzo train: "),
    (["--precision", "fp8"], 2, "mezzo train: --precision 'fp8' is not known: fp32, bf16, fp16, auto"),
    (["--optimizer", "adagrad"], 2, "mezzo train: --optimizer 'adagrad' is not known: adamw, adam, sgd, lamb"),
    (["--schedule", "step"], 2, "mezzo train: --schedule 'step' is not known: linear, cosine, cosine_with_restarts, polynomial"),
    (["--loss-scale", "big"], 2, "mezzo train: --loss-scale is 'big', expected dynamic, dynamic:FIRST or a number, from 1e-30 to 1e30"),
    (["--learning-rate", "nan"], 2, "mezzo train: --learning-rate 'nan' is neither 'auto' nor a number from 0 to 1e+30"),
    (["--nonsense"], 2, "mezzo train: --nonsense is not an option; see mezzo train --help"),
    (["--vocab", "v.txt"], 2, "mezzo train: --model-config and --vocab belong together: fresh weights need both"),
    (["--device", "cuda:7"], 1, "this machine has 0 CUDA devices that LibTorch can use; pass --device cpu or auto"),
    (["--device", "tpu"], 2, "mezzo train: --device 'tpu' is not known: cpu, cuda, cuda:N, auto"),
    (["--max-length", "513"], 1, "mezzo train: --max-length is 513, the model has positions for 512"),
    (["--train", "nothing.jsonl"], 1, "nothing.jsonl: "),
    (["--model", "nowhere"], 1, "nowhere: there is no such folder"),
    (["--master-weights"], 2, "mezzo train: --master-weights needs --precision bf16 or fp16; this run is in fp32"),
    (["--loss-scale", "dynamic:-1"], 2, "mezzo train: --loss-scale is 'dynamic:-1', expected dynamic, dynamic:FIRST or a number, from 1e-30 to 1e30"),
    (["--config", "nothing.toml"], 2, "nothing.toml: "),
    (["--config", "/dev/zero"], 2, "/dev/zero: has more than 1048576 bytes"),
    (["--config", "/"], 2, "mezzo train: --config /: is a folder, not a TOML file"),
    (["--loss-scale", "inf"], 2, "mezzo train: --loss-scale is 'inf', expected dynamic, dynamic:FIRST or a number, from 1e-30 to 1e30"),
    (["--train", "/dev/zero"], 1, "/dev/zero: "),
])
def test_wrong_input_is_one_line_and_leaves_nothing(small, data, tmp_path, change, status, message):
    output = tmp_path / "out"
    done = mezzo(*train_flags(small, data, output, *change), check=False)
    assert message in one_line(done, status)
    assert not output.exists()


def test_a_bad_row_or_setting_is_named_by_file_and_line(small, data, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a", "label": "sport"}\n{"text": "b"}\n')
    done = mezzo(*train_flags(small, data, tmp_path / "out", "--train", bad), check=False)
    assert "bad.jsonl:2" in one_line(done, 1)
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": "a", "label": "sport"}\n{"text": "b", "label": "music"}\n')
    done = mezzo(*train_flags(small, data, tmp_path / "out", "--dev", odd), check=False)
    assert "odd.jsonl:2" in one_line(done, 1) and "music" in done.stderr
    toml = tmp_path / "run.toml"
    for text, message in [("quiet = true\nsteps = 4\n", "run.toml:2: 'steps' is not a setting of mezzo train."),
                          ("learnin_rate = 1e-5\n", "run.toml:1: 'learnin_rate' is not a setting of mezzo train. Did you mean 'learning-rate'?"),
                          ("seed = 1\nmax-steps = \"ten\"\n", "run.toml:2: 'max-steps' is 'ten', it must be a whole number"),
                          ("max-steps = 1.5\n", "run.toml:1: 'max-steps' is '1.5', it must be a whole number"),
                          ("learning-rate = \"fast\"\n", "run.toml:1: --learning-rate 'fast' is neither 'auto' nor a number from 0 to 1e+30"),
                          ("\n\nseed = [1]\n", "run.toml:3: 'seed' must be a string or a number"),
                          ("quiet = 1\n", "run.toml:1: 'quiet' must be true or false"),
                          ("seed = 1\ndev = \"\"\nkeep = 3\n", "run.toml:2: --dev is empty; give it a value, or leave it out"),
                          ("a = = 1\n", "run.toml:1: "),
                          ("seed = 1\n[" + "a." * 500_000 + "a]\n", "run.toml: has more than 5000 dots; is this a TOML file of settings?"),
                          ("#" * (1 << 20) + "\n", "run.toml: has more than 1048576 bytes")]:
        toml.write_text(text)
        assert message in one_line(mezzo("train", "--config", toml, check=False), 2)
    toml.write_text("seed = 1\nwarmup_ratio = 2\n")
    flags = train_flags(small, data, tmp_path / "out", "--config", toml)
    out_of_range = "--warmup-ratio is 2, expected a number from 0 to 1"
    assert f"mezzo train: {toml}:2: {out_of_range}" in one_line(mezzo(*flags, check=False), 2)
    assert f"mezzo train: {out_of_range}" in one_line(mezzo(*flags, "--warmup-ratio", 2, check=False), 2)


def test_an_empty_value_is_refused_and_swallows_nothing(small, data, tmp_path):
    for empty in (["--dev="], ["--dev", ""]):
        done = mezzo(*train_flags(small, data, tmp_path / "out", *empty, "--keep", 3), check=False)
        assert "mezzo train: --dev is empty; give it a value, or leave it out" in one_line(done, 2)
    assert json.loads(mezzo("predict", "--model", small, "--text=", "--logits", check=False).stdout or '{"text": ""}')["text"] == ""


def test_a_switch_takes_no_number(small, data, tmp_path):
    for value in ("7", "", "yes"):
        done = mezzo(*train_flags(small, data, tmp_path / "out", f"--quiet={value}"), check=False)
        assert f"mezzo train: --quiet is '{value}'; pass it alone, or true or false" in one_line(done, 2)
    assert mezzo(*train_flags(small, data, tmp_path / "out", "--quiet=true", "--max-steps", 1)).stderr == ""


def test_an_unknown_instruction_set_is_refused_before_anything_is_written(small, data, tmp_path):
    done = subprocess.run(list(map(str, [PROGRAM, *train_flags(small, data, tmp_path / "out")])), capture_output=True, text=True,
                          env={**os.environ, "MEZZO_CPU_CAPABILITY": "foo"})
    assert "MEZZO_CPU_CAPABILITY is 'foo'" in one_line(done, 1)
    assert not (tmp_path / "out").exists()


def test_warmup_and_decay_share_the_steps_where_both_are(small, data, tmp_path):
    flags = lambda *more: train_flags(small, data, tmp_path / "out", "--warmup-ratio", 0.95, *more)
    mezzo(*flags("--max-steps", 1))
    done = mezzo(*flags("--schedule", "warmup_stable_decay"), check=False)
    assert "--warmup-ratio is 0.95 and --decay-ratio 0.1: their sum is above 1; make it at most 1" in one_line(done, 2)


def test_predictions_never_take_the_place_of_the_model(run, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(run[0], model)
    (tmp_path / "link").symlink_to(model)
    before = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    for output, why in [(model / "model.safetensors", "expected a name that ends in .jsonl or .csv"), (tmp_path / "link/config.json", ""),
                        (model / "../model/metrics.jsonl", "")]:
        done = mezzo("predict", "--model", model, "--text", "a", "--output", output, check=False)
        assert (why or f"--output {output} is a file in the folder of --model") in one_line(done, 2)
    assert before == {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    for _ in range(2):
        mezzo("predict", "--model", model, "--text", "a", "--output", model / "predictions.jsonl")


def write_rows(path, rows):
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return path


def test_data_that_cannot_be_meant_is_refused(small, data, tmp_path):
    words = make_rows(40, seed=1)
    for name, rows, message in [
        ("single", [(text, "sport") for text, _ in words], "single.jsonl: all texts have the same label, 'sport'; training needs different labels"),
        ("empty", [(" ", label) for _, label in words], "empty.jsonl: all of its 40 texts are empty, so there is nothing to learn from"),
    ]:
        train = write_rows(tmp_path / f"{name}.jsonl", rows)
        done = mezzo(*train_flags(small, data, tmp_path / "out", "--train", train), check=False)
        assert message in one_line(done, 1)
    few = write_rows(tmp_path / "few.jsonl", words[:2])
    done = mezzo("train", "--model", small, "--train", few, "--output", tmp_path / "out", check=False)
    assert "few.jsonl: has 2 texts, too few for --dev-ratio 0.08; pass --dev FILE, or --dev-ratio 0" in one_line(done, 1)
    assert not (tmp_path / "out").exists()


def test_a_class_without_a_text_is_trained_where_asked_for(small, data, tmp_path):
    rows = [(text, [0, 29_999][label == "sport"]) for text, label in make_rows(40, seed=1)]
    train = write_rows(tmp_path / "gap.jsonl", rows)
    output = tmp_path / "out"
    settings = tmp_path / "settings.toml"
    settings.write_text(f'labels = "{",".join(map(str, range(30_000)))}"\n')
    done = mezzo("train", "--model", small, "--train", train, "--dev", train, "--test", train, "--output", output,
                 "--max-steps", 1, "--config", settings)
    names = json.loads((output / "config.json").read_text())["id2label"]
    assert len(names) == 30_000 and names["29999"] == "29999"
    assert "warning: 29998 of 30000 labels have no training text: '1', '2', '3'" in done.stderr
    assert records(output, "end")[0]["peak_memory_bytes"] < 2e9  # a matrix of all labels by all would take 7 GB


def labels_of(folder):
    names = json.loads((folder / "config.json").read_text())["id2label"]
    return [names[str(i)] for i in range(len(names))]


def test_stars_from_1_to_5_are_classes_in_every_file_and_life_of_a_run(small, tmp_path):
    texts = [text for text, _ in make_rows(60, seed=1)]
    train, dev, test = tmp_path / "train.csv", tmp_path / "dev.jsonl", tmp_path / "test.csv"
    train.write_text("text,label\n" + "".join(f"{text},{i % 5 + 1}\n" for i, text in enumerate(texts)))
    write_rows(dev, [(text, float(i % 4 + 2)) for i, text in enumerate(texts[:20])])  # 2.0 to 5.0
    test.write_text("text,label\n" + "".join(f"{text},{i % 2 + 4}\n" for i, text in enumerate(texts[:20])))
    flags = ["train", "--model", small, "--train", train, "--dev", dev, "--test", test, "--batch-size", 8, "--learning-rate", 1e-3,
             "--schedule", "constant", "--seed", 1]
    mezzo(*flags, "--output", tmp_path / "out", "--max-steps", 4, "--save-every", 2)
    assert labels_of(tmp_path / "out") == ["1", "2", "3", "4", "5"]
    mezzo(*flags, "--output", tmp_path / "again", "--max-steps", 4, "--resume", tmp_path / "out/checkpoints/step-2")
    weights = (tmp_path / "out/model.safetensors").read_bytes()
    assert (tmp_path / "again/model.safetensors").read_bytes() == weights
    # The same places in the file of another model, whose labels are the numbers less one.
    shifted = tmp_path / "shifted.jsonl"
    write_rows(shifted, [(text, i % 5) for i, text in enumerate(texts)])
    mezzo("train", "--model", small, "--train", shifted, "--dev-ratio", 0, "--batch-size", 8, "--learning-rate", 1e-3, "--schedule",
          "constant", "--seed", 1, "--max-steps", 4, "--output", tmp_path / "shifted")
    mezzo("train", "--model", small, "--train", train, "--dev-ratio", 0, "--batch-size", 8, "--learning-rate", 1e-3, "--schedule",
          "constant", "--seed", 1, "--max-steps", 4, "--output", tmp_path / "stars")
    assert (tmp_path / "shifted/model.safetensors").read_bytes() == (tmp_path / "stars/model.safetensors").read_bytes()
    tested = [record["accuracy"] for record in records(tmp_path / "out", "eval") if record["split"] == "test"][-1]
    assert json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", test, "--json").stdout)["accuracy"] == tested
    unknown = write_rows(tmp_path / "unknown.jsonl", [(texts[0], 0)])
    done = mezzo("eval", "--model", tmp_path / "out", "--data", unknown, check=False)
    assert "unknown.jsonl:1: row 1: unknown label '0'. The labels are: 1, 2, 3, 4, 5." in one_line(done, 1)
    done = mezzo(*flags[:3], "--train", train, "--dev", unknown, "--output", tmp_path / "no", check=False)
    assert "unknown.jsonl:1: row 1: unknown label '0'. The labels are: 1, 2, 3, 4, 5. No training text has it. --labels" in one_line(done, 1)


def test_labels_fix_the_order_of_classes(small, data, tmp_path):
    train = write_rows(tmp_path / "train.jsonl", [(text, ["low", "mid", "high"][i % 3]) for i, (text, _) in enumerate(make_rows(30, seed=1))])
    flags = ["train", "--model", small, "--train", train, "--dev", train, "--max-steps", 1]
    mezzo(*flags, "--output", tmp_path / "out", "--labels", "low,mid,high,\"very, very high\"")
    assert labels_of(tmp_path / "out") == ["low", "mid", "high", "very, very high"]
    done = mezzo(*flags, "--output", tmp_path / "no", "--labels", "low,mid", check=False)
    assert "train.jsonl:3: row 3: unknown label 'high'. The labels are: low, mid. Add it to --labels, or correct the row." in one_line(done, 1)
    again = ["train", "--model", tmp_path / "out", "--train", train, "--dev", train, "--max-steps", 1, "--output", tmp_path / "more"]
    done = mezzo(*again, "--labels", "low,mid,high", check=False)
    assert "has the labels low,mid,high,very, very high; leave --labels out, or pass --new-head" in one_line(done, 1)
    mezzo(*again, "--labels", "high,mid,low", "--new-head")
    assert labels_of(tmp_path / "more") == ["high", "mid", "low"]


def test_a_column_for_each_label_is_a_task_of_several_labels(small, tmp_path):
    rows = make_rows(40, seed=1)
    train = tmp_path / "train.csv"
    train.write_text("id,text,toxic,threat,insult\n" + "".join(f"{i},{text},{i % 2},0,{int(i % 3 == 0)}\n" for i, (text, _) in enumerate(rows)))
    columns = ["--label-column", "toxic,threat,insult"]
    flags = ["train", "--model", small, "--train", train, "--dev", train, "--max-steps", 1, *columns]
    done = mezzo(*flags, "--output", tmp_path / "out")
    assert labels_of(tmp_path / "out") == ["toxic", "threat", "insult"]  # in the order of the flag, also without a text
    assert json.loads((tmp_path / "out/config.json").read_text())["problem_type"] == "multi_label_classification"
    assert "warning: 1 of 3 labels has no training text: 'threat'" in done.stderr
    listed = tmp_path / "listed.csv"
    listed.write_text("text,label\n" + "".join(f"{text},{'|'.join(n for n, on in (('toxic', i % 2), ('insult', i % 3 == 0)) if on)}\n"
                                               for i, (text, _) in enumerate(rows)))
    scores = [mezzo("eval", "--model", tmp_path / "out", "--data", *data, "--json").stdout for data in ([train, *columns], [listed])]
    assert json.loads(scores[0]) == json.loads(scores[1])
    done = mezzo(*flags, "--output", tmp_path / "no", "--task", "single_label_classification", check=False)
    assert "--label-column names 3 columns, one for each label, which needs --task multi_label_classification" in one_line(done, 1)


def test_what_is_odd_about_the_data_is_said_at_the_start(run, small, data, tmp_path):
    rows = make_rows(40, seed=1)
    rows += [rows[0], (rows[1][0], "politics" if rows[1][1] == "sport" else "sport"), ("", "sport"), ("rain", "sport ")]
    train = write_rows(tmp_path / "train.jsonl", rows)
    dev = write_rows(tmp_path / "dev.jsonl", [("new words", "sport"), rows[5]])
    done = mezzo("train", "--model", small, "--train", train, "--dev", dev, "--test", train, "--output", tmp_path / "out",
                 "--max-steps", 1)
    for warning in ["an earlier text with the same label, such as {0}:",
                    "an earlier text with another label, such as {0}:",
                    "1 of 44 texts in {0} is empty, the first at {0}:43",
                    "1 of 4 labels in {0} differs from another label only in white space or case, such as 'sport ' at {0}:44 and 'sport' at {0}:",
                    "1 of 2 dev texts also occur in training, such as {1}:2 and {0}:6: dev scores are optimistic",
                    "the test texts are the training file, {0}: test scores are optimistic"]:
        assert re.search("^warning: .*" + re.escape(warning.format(train, dev)), done.stderr, re.M), (warning, done.stderr)

    numbers = write_rows(tmp_path / "numbers.jsonl", [(text, i % 3) for i, (text, _) in enumerate(make_rows(40, seed=2))])
    done = mezzo("train", "--model", run[0], "--train", numbers, "--output", tmp_path / "again", "--max-steps", 1, "--dev-ratio", 0)
    assert (f"warning: the labels in {numbers} are numbers, read as positions in the model's list of labels: 0 is 'politics', "
            "1 is 'sport', 2 is 'weather'\n") in done.stderr
    assert "warning: the labels in " in mezzo("eval", "--model", run[0], "--data", numbers).stderr
    own = write_rows(tmp_path / "own.jsonl", [(text, i) for i, (text, _) in enumerate(make_rows(40, seed=2))])
    done = mezzo("train", "--model", small, "--train", own, "--output", tmp_path / "own", "--max-steps", 1)
    assert (f"warning: 40 texts in {own} have 40 different labels; is 'label' the right column? --label-column names it\n"
            in done.stderr)
    assert "no training text" not in done.stderr
    done = mezzo(*train_flags(small, data, tmp_path / "clean", "--max-steps", 1))
    assert not re.search("warning: .*(empty|white space|numbers|no training text)", done.stderr)


def test_a_file_that_is_no_vocabulary_is_refused_at_once(small, data, tmp_path):
    config = tmp_path / "config.json"
    shutil.copy(small / "config.json", config)
    vocab = tmp_path / "data.json"
    vocab.write_text(json.dumps([["some words of a text, over and over", i] for i in range(60_000)]))  # one line of 2.6 MB
    flags = ["train", "--model-config", config, "--vocab", vocab, "--train", data / "train.jsonl", "--output", tmp_path / "out"]
    assert f"{vocab}:1: a token of {vocab.stat().st_size} bytes; at most 1000 make one" in one_line(mezzo(*flags, check=False), 1)
    vocab.write_text("[PAD]\n[MASK]\nword\n")
    assert f'{vocab}: the vocabulary lacks the tokens "[UNK]", "[SEP]", "[CLS]"' in one_line(mezzo(*flags, check=False), 1)


def test_bad_json_is_named_by_file_and_line(small, data, tmp_path):
    for name, content in [("config.json", None), ("tokenizer_config.json", None), ("special_tokens_map.json", "{}")]:
        for bad, message in [("1e999", "a number too large for a double"), ("[" * 10**6, "JSON nested more than 127 deep")]:
            model = tmp_path / "model"
            shutil.copytree(small, model)
            if name == "special_tokens_map.json":
                (model / "tokenizer_config.json").unlink()  # older folders have no tokenizer_config.json
            whole = content or (model / name).read_text()
            (model / name).write_text(whole.rstrip()[:-1] + ("," if content is None else "") + f'\n"odd": {bad}\n}}')
            done = mezzo(*train_flags(model, data, tmp_path / "out"), check=False)
            line = one_line(done, 1)
            assert re.search(re.escape(f"{model / name}:") + r"\d+: " + re.escape(message), line), line
            shutil.rmtree(model)


def test_a_model_of_few_positions_needs_no_max_length(data, tmp_path):
    """By default, every command truncates texts to the model's positions."""
    folder, out, long_texts = tmp_path / "model", tmp_path / "out", tmp_path / "long.jsonl"
    model, _ = random_bert(folder, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
    model.bert.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(folder)
    long_texts.write_text("".join(json.dumps({"text": f"{word} " * 200, "label": label}) + "\n" for word, label in zip(WORDS, LABELS * 2)))
    given = ["train", "--recipe", "default", "--model", folder, "--train", long_texts, "--dev", long_texts, "--max-steps", 1, "--precision", "fp32"]
    assert "truncated to 64 tokens" in mezzo(*given, "--output", out).stderr
    assert json.loads((out / "run.json").read_text())["settings"]["max-length"] == "64"
    mezzo("train", "--config", out / "run.json", "--output", tmp_path / "again")
    assert sha(tmp_path / "again") == sha(out)
    mezzo(*given, "--output", out, "--resume", "auto", "--max-length", "auto")
    assert "max-length was '64', is now '32'" in mezzo(*given, "--output", out, "--resume", "auto", "--max-length", 32, check=False).stderr
    assert "--max-length is 65, the model has positions for 64" in mezzo(*given, "--output", tmp_path / "no", "--max-length", 65, check=False).stderr
    (tmp_path / "search.toml").write_text(f'trials = 1\n[train]\nmodel = "{folder}"\ntrain = "{long_texts}"\ndev = "{long_texts}"\nmax-steps = 1\n'
                                          '[search]\nseed = [1, 2]\n')
    for command in [["eval", "--model", out, "--data", long_texts], ["predict", "--model", out, "--data", long_texts],
                    ["check-int8", "--model", out, "--data", long_texts, "--max-loss", 100], ["tokenize", "--model", out, "--data", long_texts],
                    ["export", "--model", out, "--onnx", tmp_path / "model.onnx"], ["compare", out, tmp_path / "again", "--data", long_texts],
                    ["tune", "--config", tmp_path / "search.toml", "--output", tmp_path / "search"]]:
        mezzo(*command)


def test_a_run_is_not_overwritten_unless_asked(run, small, data):
    output, _ = run
    before = sha(output)
    done = mezzo(*train_flags(small, data, output), check=False)
    assert "holds a finished run already" in one_line(done, 1)
    assert sha(output) == before


def test_gradients_that_stay_non_finite_end_the_run_and_never_reach_the_weights(small, data, tmp_path):
    poisoned = tmp_path / "model"
    shutil.copytree(small, poisoned)
    from safetensors.torch import load_file, save_file

    tensors = load_file(poisoned / "model.safetensors")
    tensors["encoder.layer.0.output.dense.bias"][0] = float("nan")
    save_file(tensors, poisoned / "model.safetensors")
    done = mezzo(*train_flags(poisoned, data, tmp_path / "out", "--epochs", 20, "--eval-every", 0), check=False)
    assert done.returncode == 1
    assert "training: the last 50 steps, up to step 50, were skipped because gradients were inf or NaN" in done.stderr
    assert all(record["skipped"] and record["loss"] is None for record in records(tmp_path / "out", "step"))
    assert "loss NaN" in done.stderr and "nan" not in done.stderr
    page = (tmp_path / "out/report.html").read_text()
    assert "This run failed after step 50 of 200: training: the last 50 steps" in page and "<b>Gradient norm</b>" in page
    run = json.loads((tmp_path / "out/run.json").read_text())
    assert run["status"] == "failed" and run["error"].startswith("training: the last 50 steps")


def test_an_evaluation_that_is_not_finite_is_never_the_best(small, data, tmp_path):
    huge = ["--learning-rate", 1e30, "--optimizer", "sgd", "--eval-every", 4]
    done = mezzo(*train_flags(small, data, tmp_path / "out", *huge, "--max-steps", 8), check=False)
    assert done.returncode == 1 and "training: no evaluation on dev gave finite numbers" in done.stderr
    assert "step 4: dev loss NaN; such a model is never kept as the best" in done.stderr
    for record in records(tmp_path / "out", "eval"):
        assert (record["loss"], record["accuracy"], record["macro_f1"]) == (None, None, None)
    assert not (tmp_path / "out/model.safetensors").exists()
    assert (tmp_path / "out/checkpoints/step-8/weights.safetensors").exists(), "nothing is lost"
    assert "no evaluation on dev gave finite numbers" in (tmp_path / "out/report.html").read_text()


def test_a_model_that_gives_nan_labels_nothing(run, data, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(run[0], broken)
    weights = load_file(broken / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    for command in ["eval", "--data", data / "test.jsonl"], ["predict", "--text", "goal"]:
        done = mezzo(*command, "--model", broken, "--precision", "fp32", check=False)
        assert "holds inf or NaN; its file is damaged, or its training diverged" in one_line(done, 1)
        assert done.stdout == ""
    weights["classifier.bias"][0] = 3.4e38  # which bf16 rounds to inf
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    done = mezzo("predict", "--model", broken, "--precision", "bf16", "--text", "goal", check=False)
    assert "the model gives inf or NaN for text 1 in bf16; try --precision fp32" in one_line(done, 1)


def test_what_a_message_quotes_does_not_break_its_line(run, tmp_path):
    odd = tmp_path / "na me\nü.jsonl"
    odd.write_text('{"text": "goal", "label": "a\\nb\\u001b[31m"}\n')
    message = one_line(mezzo("eval", "--model", run[0], "--data", odd, check=False), 1)
    assert "na me ü.jsonl:1: row 1: unknown label 'a b[31m'. The labels are: " in message


def test_predictions_never_replace_the_texts(run, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("goal\n")
    (tmp_path / "link.txt").symlink_to(texts)
    done = mezzo("predict", "--model", run[0], "--data", texts, "--output", tmp_path / "link.txt", check=False)
    refusal = "is the file that the texts are read from: predictions would replace them; pass another"
    assert refusal in one_line(done, 2)
    with open(texts) as stdin:
        done = subprocess.run([PROGRAM, "predict", "--model", run[0], "--output", texts], stdin=stdin, capture_output=True, text=True)
    assert refusal in one_line(done, 2)
    assert texts.read_text() == "goal\n"


def test_bytes_that_are_no_utf8_are_counted(run, tmp_path):
    (tmp_path / "bad.csv").write_bytes(b"text,label\ngo\xffal,sport\n" + "schön und grün,sport\n".encode() * 50)
    for command in ["predict", "--model", run[0]], ["eval", "--model", run[0]], ["tokenize", "--model", run[0]]:
        done = mezzo(*command, "--data", tmp_path / "bad.csv")
        assert done.stderr == f"{tmp_path}/bad.csv: 1 byte that is not valid UTF-8 became U+FFFD\n"
        if command[0] != "eval":
            done = subprocess.run([PROGRAM, *map(str, command)], input=b"go\xffal\nteam\n", capture_output=True, check=True)
            assert done.stderr == b"stdin: bytes that are not UTF-8 became U+FFFD in 1 of 2 rows\n"
    done = subprocess.run([PROGRAM, "predict", "--model", run[0], "--text", b"go\xffal"], capture_output=True, check=True)
    assert done.stderr == b"--text: bytes that are not UTF-8 became U+FFFD in 1 of 1 rows\n"
    assert json.loads(done.stdout)["text"] == "go\ufffdal"


def test_labels_of_a_model_that_cannot_be_told_apart_are_refused_by_file(run, data, tmp_path):
    for names, message in [(["a"], "id2label has fewer than two labels; a classifier needs two"),
                           (["a", "a", "c"], "id2label names two labels 'a'; give each a different name")]:
        model = tmp_path / str(len(names))
        shutil.copytree(run[0], model)
        config = json.loads((model / "config.json").read_text())
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        (model / "config.json").write_text(json.dumps(config))
        assert f"{model}/config.json: {message}" in one_line(mezzo("predict", "--model", model, "--text", "x", check=False), 1)


def test_wrong_commands_and_foreign_models():
    assert "--model is required" in one_line(mezzo("eval", "--data", "x", check=False), 2)
    assert "not a trained classifier" in one_line(mezzo("predict", "--model", MINILM, "--text", "x", check=False), 1)
