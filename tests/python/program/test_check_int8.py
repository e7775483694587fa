"""`mezzo check-int8`: its comparison of a model in int8 with fp32, and the warnings of predictions in int8."""
import json
import random
import re
import shutil

import _mezzo
import pytest
from safetensors.torch import load_file, save_file
from support import MINILM, mezzo, random_bert
from tiny_runs import LABELS, WORDS, flags, run, trained, write_data
from transformers import AutoTokenizer


pytestmark = pytest.mark.skipif(not _mezzo.has_int8_products(), reason="this processor has no products of int8")


@pytest.fixture(scope="module")
def run_of_program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    data = write_data(folder / "data")
    trained(flags(data, folder / "out"))
    return data, folder / "out"


@pytest.fixture
def model(run_of_program, tmp_path):
    return shutil.copytree(run_of_program[1], tmp_path / "model")


def change_weights(model, change):
    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def breaks_in_int8(weights):
    """A unit that is never active has the largest weights by far: of the others nothing is left in int8, in fp32 all."""
    for layer in ("intermediate", "output"):
        weights[f"bert.encoder.layer.0.{layer}.dense.weight"] *= 20  # so that much depends on this block
    weights["bert.encoder.layer.0.intermediate.dense.bias"][0] = -1e4
    weights["bert.encoder.layer.0.output.dense.weight"][:, 0] = 1e5


def test_it_says_what_predictions_in_both_come_to(run_of_program, model):
    data = run_of_program[0] / "dev.jsonl"
    unchecked = run(["predict", "--model", model, "--text", "goal", "--precision", "int8"])
    assert unchecked.returncode == 0 and json.loads(unchecked.stdout)["label"] in LABELS
    assert unchecked.stderr == f"warning: {model} was not checked in int8; mezzo check-int8 --model {model} --data FILE compares it with fp32\n"
    said = mezzo("check-int8", "--model", model, "--data", data, "--max-loss", 100)
    found = json.loads((model / "int8.json").read_text())
    labels = {}
    for precision in ("fp32", "int8"):
        measured = json.loads(mezzo("eval", "--model", model, "--data", data, "--precision", precision, "--json").stdout)
        assert found[precision] == measured["accuracy"]
        lines = mezzo("predict", "--model", model, "--data", data, "--precision", precision).stdout.splitlines()
        labels[precision] = [json.loads(line)["label"] for line in lines]
    same = sum(a == b for a, b in zip(labels["fp32"], labels["int8"], strict=True)) / 30
    assert found["metric"] == "accuracy" and found["texts"] == 30 and found["same_answers"] == same
    points = 100 * (found["int8"] - found["fp32"])
    assert said.stdout == (f"accuracy {found['fp32']:.4f} in fp32, {found['int8']:.4f} in int8 ({points:+.2f} points); "
                           f"the same labels for {100 * same:.2f}% of 30 texts\n")
    assert run(["predict", "--model", model, "--text", "goal", "--precision", "int8"]).stderr == ""
    told = json.loads(mezzo("check-int8", "--model", model, "--data", data, "--max-loss", 100, "--json").stdout)
    assert told.pop("worse") == pytest.approx(-points, abs=1e-12) and told.pop("unit") == "points" and told.pop("accepted") is True
    assert told == {key: found[key] for key in ("metric", "fp32", "int8", "texts", "same_answers")}


def test_predict_warns_of_a_model_that_loses_too_much(run_of_program, model, tmp_path):
    data = run_of_program[0] / "dev.jsonl"
    mezzo("check-int8", "--model", model, "--data", data, "--max-loss", 100)
    change_weights(model, breaks_in_int8)
    stale = run(["predict", "--model", model, "--text", "goal", "--precision", "int8"])
    assert stale.returncode == 0 and f"warning: {model} was not checked in int8; mezzo check-int8" in stale.stderr
    mezzo("predict", "--model", model, "--data", data, "--precision", "fp32", "--output", tmp_path / "answers.jsonl")
    worse = run(["check-int8", "--model", model, "--data", tmp_path / "answers.jsonl"])
    assert worse.returncode == 1 and worse.stdout.startswith("accuracy 1.0000 in fp32, 0.")
    assert re.search(r"mezzo check-int8: int8 is [0-9.]+ points worse, and --max-loss is 0.5\n", worse.stderr), worse.stderr
    assert json.loads((model / "int8.json").read_text())["accepted"] is False
    predict = ["predict", "--model", model, "--text", "goal", "--precision", "int8"]
    warned = run(predict)
    assert warned.returncode == 0 and warned.stderr == f"warning: {model}/int8.json: int8 is worse than fp32 by more than --max-loss of mezzo check-int8\n"
    told = run(["check-int8", "--model", model, "--data", tmp_path / "answers.jsonl", "--json"])
    assert told.returncode == 1 and json.loads(told.stdout)["accepted"] is False and json.loads(told.stdout)["worse"] > 0.5
    assert " points);" in mezzo("check-int8", "--model", model, "--data", tmp_path / "answers.jsonl", "--max-loss", 100).stdout
    assert run(predict).stderr == ""


TASKS = {
    "multi_label_classification": ("micro_f1", [["sport"], ["sport", "weather"], []], True),
    "regression": ("mean_squared_error", [0.5, 1.5, -2.25], False),
    "token_classification": ("f1", [["O", "B-x"], ["O", "O"], ["B-x", "I-x"]], True),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_compared_by_its_own_metric(task, tmp_path):
    metric, labels, has_labels = TASKS[task]
    per_token = task == "token_classification"
    random_bert(tmp_path / "model", labels=1 if task == "regression" else 3, hidden_size=32, num_hidden_layers=2,
                num_attention_heads=4, intermediate_size=64)
    AutoTokenizer.from_pretrained(MINILM).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text())
    config |= {"problem_type": None if per_token else task, "architectures": [f"BertFor{'Token' if per_token else 'Sequence'}Classification"]}
    if task != "regression":
        config["id2label"] = {str(i): name for i, name in enumerate(["O", "B-x", "I-x"] if per_token else LABELS)}
        config["label2id"] = {name: int(i) for i, name in config["id2label"].items()}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    if per_token:
        change_weights(tmp_path / "model", lambda weights: [weights.pop(name) for name in list(weights) if "pooler" in name])
    rng = random.Random(0)
    change_weights(tmp_path / "model", breaks_in_int8)  # so that some labels are others
    texts = [rng.choices(WORDS, k=2) for _ in range(150)]
    rows = [{"text": words if per_token else " ".join(words), "label": labels[i % 3]} for i, words in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    mezzo("check-int8", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--max-loss", 100)
    found = json.loads((tmp_path / "model/int8.json").read_text())
    assert found["metric"] == metric and ("same_answers" in found) == has_labels
    measured = json.loads(mezzo("eval", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--precision", "int8", "--json").stdout)
    assert found["int8"] == measured[metric]
    if has_labels:
        fp32, int8 = ([json.loads(line)["labels"] for line in mezzo(
            "predict", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--precision", precision).stdout.splitlines()]
            for precision in ("fp32", "int8"))
        assert found["same_answers"] == sum(a == b for a, b in zip(fp32, int8, strict=True)) / len(fp32)
        assert found["same_answers"] < 1 or not per_token


@pytest.mark.parametrize("arguments, status, message", [
    (["predict", "--text", "goal", "--precision", "int8", "--device", "cuda"], 2,
     "--precision int8 is for CPUs, and --device is cuda; pass --device cpu or another precision"),
    (["predict", "--text", "goal", "--precision", "int4"], 2, "--precision 'int4' is not known: fp32, bf16, fp16, int8, auto"),
    (["check-int8"], 2, "--data is required"),
    (["check-int8", "--data", "/nowhere.jsonl"], 1, "/nowhere.jsonl: cannot be read"),
    (["check-int8", "--data", "x.jsonl", "--max-loss", "nan"], 2, "--max-loss is nan, expected a number from 0 to 100"),
    (["check-int8", "--data", "x.jsonl", "--max-loss", "-1"], 2, "--max-loss is -1, expected a number from 0 to 100"),
])  # fmt: skip
def test_what_cannot_be_is_refused(arguments, status, message, model):
    done = run([*arguments, "--model", model])
    assert done.returncode == status and message in done.stderr, done.stderr


def test_a_record_that_is_none_counts_as_none(run_of_program, model):
    predict, check = ["predict", "--model", model, "--text", "goal", "--precision", "int8"], ["check-int8", "--model", model, "--data", run_of_program[0] / "dev.jsonl"]
    for content in ("", "hello", "[]", "{}"):
        (model / "int8.json").write_text(content)
        done = run(predict)
        assert done.returncode == 0 and "was not checked in int8" in done.stderr, done.stderr
    assert run([*check, "--max-loss", 100]).stderr == "warning: 30 texts are few for a comparison; pass more\n" and run(predict).stderr == ""
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"gelu"', '"relu"'))
    assert "was not checked in int8" in run(predict).stderr, "it is of another config.json"
    (model / "int8.json").unlink()
    (model / "int8.json").mkdir()
    assert "was not checked in int8" in run(predict).stderr
    done = run(check)
    assert done.returncode == 1 and done.stderr == f"mezzo check-int8: {model}/int8.json is not a file, but would be replaced by one; remove it\n"
    assert "it runs in one process" in run(check, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1").stderr


def test_weights_that_are_no_numbers_are_named(run_of_program, model):
    def damage(weights):
        weights["bert.encoder.layer.0.output.dense.weight"][1, 2] = float("nan")

    change_weights(model, damage)
    done = run(["check-int8", "--model", model, "--data", run_of_program[0] / "dev.jsonl"])
    assert done.returncode == 1 and "the model's bert.encoder.layer.0.output.dense.weight holds inf or NaN" in done.stderr, done.stderr


def test_processors_without_the_instructions_are_told(run_of_program, model):
    done = run(["check-int8", "--model", model, "--data", run_of_program[0] / "dev.jsonl"], MEZZO_CPU_CAPABILITY="baseline")
    assert done.returncode == 1 and done.stderr == "mezzo check-int8: int8 needs a CPU with AVX2 or AVX-512, and this device has neither\n"


def test_the_old_name_works_with_a_note(run_of_program, model):
    done = run(["quantize", "--model", model, "--data", run_of_program[0] / "dev.jsonl", "--max-loss", 100])
    assert done.returncode == 0
    assert done.stderr.splitlines()[0] == "mezzo: quantize is check-int8 now; the next version will not know the old name"
