"""`mezzo quantize`: what it says of a model in int8, and what predictions in int8 ask for."""
import json
import random
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
    refused = run(["predict", "--model", model, "--text", "goal", "--precision", "int8"])
    assert refused.returncode == 1 and refused.stdout == ""
    assert refused.stderr == (f"mezzo predict: {model}/int8.json is not there, which says how good the model is in int8; "
                              f"mezzo quantize --model {model} --data FILE compares int8 with fp32 on labelled texts\n")
    said = mezzo("quantize", "--model", model, "--data", data, "--max-loss", 100)
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
                           f"the same labels for {100 * same:.2f}% of 30 texts\n"
                           f"mezzo predict --model {model} --precision int8 may be used now\n")
    told = json.loads(mezzo("quantize", "--model", model, "--data", data, "--max-loss", 100, "--json").stdout)
    assert told.pop("worse") == pytest.approx(-points, abs=1e-12) and told.pop("unit") == "points" and told.pop("accepted") is True
    assert told == {key: found[key] for key in ("metric", "fp32", "int8", "texts", "same_answers")}


def test_a_model_that_loses_too_much_is_refused(run_of_program, model, tmp_path):
    data = run_of_program[0] / "dev.jsonl"
    mezzo("quantize", "--model", model, "--data", data, "--max-loss", 100)
    change_weights(model, breaks_in_int8)
    stale = run(["predict", "--model", model, "--text", "goal", "--precision", "int8"])
    assert stale.returncode == 1 and f"{model}/int8.json: it is of another model.safetensors or config.json than lie there now; mezzo quantize" in stale.stderr
    mezzo("predict", "--model", model, "--data", data, "--precision", "fp32", "--output", tmp_path / "answers.jsonl")
    worse = run(["quantize", "--model", model, "--data", tmp_path / "answers.jsonl"])
    assert worse.returncode == 1 and worse.stdout == "" and worse.stderr.startswith("mezzo quantize: accuracy 1.0000 in fp32, 0.")
    assert f" points worse, and --max-loss is 0.5, so mezzo predict refuses {model} in int8\n" in worse.stderr
    assert not (model / "int8.json").exists()
    refused = run(["quantize", "--model", model, "--data", tmp_path / "answers.jsonl", "--json"])
    told = json.loads(refused.stdout)
    assert refused.returncode == 1 and refused.stderr == worse.stderr and told["accepted"] is False and told["worse"] > 0.5
    # Whoever is told may have it all the same.
    assert " points);" in mezzo("quantize", "--model", model, "--data", tmp_path / "answers.jsonl", "--max-loss", 100).stdout
    assert run(["predict", "--model", model, "--text", "goal", "--precision", "int8"]).returncode == 0


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
    mezzo("quantize", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--max-loss", 100)
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
    (["quantize"], 2, "--data is required"),
    (["quantize", "--data", "/nowhere.jsonl"], 1, "/nowhere.jsonl: cannot be read"),
    (["quantize", "--data", "x.jsonl", "--max-loss", "nan"], 2, "--max-loss is nan, expected a number from 0 to 100"),
    (["quantize", "--data", "x.jsonl", "--max-loss", "-1"], 2, "--max-loss is -1, expected a number from 0 to 100"),
])  # fmt: skip
def test_what_cannot_be_is_refused(arguments, status, message, model):
    done = run([*arguments, "--model", model])
    assert done.returncode == status and message in done.stderr, done.stderr


def test_a_record_that_is_none_is_refused(run_of_program, model):
    predict, quantize = ["predict", "--model", model, "--text", "goal", "--precision", "int8"], ["quantize", "--model", model, "--data", run_of_program[0] / "dev.jsonl"]
    for content in ("", "hello", "[]", "{}"):
        (model / "int8.json").write_text(content)
        done = run(predict)
        assert done.returncode == 1 and f"{model}/int8.json is damaged; mezzo quantize --model" in done.stderr, done.stderr
    assert run([*quantize, "--max-loss", 100]).stderr == "30 texts tell little; pass more\n" and run(predict).returncode == 0
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(config.replace('"gelu"', '"relu"'))
    assert "it is of another model.safetensors or config.json" in run(predict).stderr
    (model / "int8.json").unlink()
    (model / "int8.json").mkdir()
    assert f"{model}/int8.json is not there" in run(predict).stderr
    done = run(quantize)
    assert done.returncode == 1 and done.stderr == f"mezzo quantize: {model}/int8.json is no file, and would be replaced by one; remove it\n"
    assert "it is for one process" in run(quantize, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1").stderr


def test_weights_that_are_no_numbers_are_named(run_of_program, model):
    def damage(weights):
        weights["bert.encoder.layer.0.output.dense.weight"][1, 2] = float("nan")

    change_weights(model, damage)
    done = run(["quantize", "--model", model, "--data", run_of_program[0] / "dev.jsonl"])
    assert done.returncode == 1 and "the model's bert.encoder.layer.0.output.dense.weight holds inf or NaN" in done.stderr, done.stderr


def test_processors_without_the_instructions_are_told(run_of_program, model):
    done = run(["quantize", "--model", model, "--data", run_of_program[0] / "dev.jsonl"], MEZZO_CPU_CAPABILITY="baseline")
    assert done.returncode == 1 and done.stderr == "mezzo quantize: int8 needs a CPU with AVX2 or AVX-512, and this device has neither\n"
