"""Folders that look like a trained classifier of texts and are none, or not a whole one."""
import json
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import PROGRAM
from tiny_runs import flags, run, trained, write_data
from transformers import AutoModelForQuestionAnswering, ModernBertConfig


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def classifier(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("classifier") / "out"
    trained(flags(data, out))
    return out


def changed(classifier, folder, change):
    shutil.copytree(classifier, folder, ignore=shutil.ignore_patterns("checkpoints", "run.json", "metrics.jsonl"))
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def answerer(data, tmp_path_factory):
    """ModernBERT's, whose head has the names of a classifier of texts."""
    folder = tmp_path_factory.mktemp("answerer")
    ids = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    config = ModernBertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                              max_position_embeddings=16, id2label={0: "begin", 1: "end", 2: "none"}, **ids)
    torch.manual_seed(0)
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder)
    shutil.copy(data / "vocab.txt", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer")))
    return folder


def test_a_model_for_answers_is_no_classifier(answerer):
    done = run(["predict", "--model", answerer, "--text", "goal"])
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (f"mezzo predict: {answerer}/config.json: the model is a ModernBertForQuestionAnswering, not a trained classifier of texts or words; train one from it with mezzo train\n")


def test_training_gives_such_a_model_a_head_of_its_own(answerer, data, tmp_path):
    given = flags(data, tmp_path / "out")
    at = given.index("--model-config")
    done = trained([*given[:at], "--model", answerer, *given[at + 4:]])
    assert f"missing from {answerer}; initialised at random: classifier.weight, classifier.bias" in done.stderr
    assert json.loads((tmp_path / "out/config.json").read_text())["id2label"] == {"0": "politics", "1": "sport", "2": "weather"}


def test_tensors_that_are_not_used_are_named(classifier, tmp_path):
    def add(weights):
        weights["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(8)
        weights["bert.embeddings.position_ids"] = torch.arange(16)  # which older versions of transformers wrote

    folder = changed(classifier, tmp_path / "more", add)
    done = trained(["predict", "--model", folder, "--text", "goal"])
    assert done.stderr == f"in {folder}, but not used: bert.encoder.layer.1.output.dense.bias\n"


def test_nan_in_the_weights_is_named_before_the_first_step(classifier, data, tmp_path):
    def spoil(weights):
        weights["bert.encoder.layer.0.output.dense.weight"][3, 2] = float("nan")

    folder = changed(classifier, tmp_path / "spoilt", spoil)
    given = flags(data, tmp_path / "out")
    at = given.index("--model-config")
    done = run([*given[:at], "--model", folder, *given[at + 4:]])
    assert done.returncode == 1
    assert f"warning: {folder}: bert.encoder.layer.0.output.dense.weight holds inf or NaN; fetch the file again\n" in done.stderr


@pytest.mark.parametrize("parts", [["pytorch_model.bin"], ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"], ["weights.pt"]])
def test_the_command_that_converts_a_pickle_works(parts, classifier, tmp_path):
    folder = changed(classifier, tmp_path / "pickle", lambda weights: None)
    weights = load_file(folder / "model.safetensors")
    for i, part in enumerate(parts):
        torch.save({name: weights[name] for name in sorted(weights)[i::len(parts)]}, folder / part)
    torch.save({"not": "a tensor"}, folder / "training_args.bin")
    (folder / "model.safetensors").unlink()
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "only a pickle such as pytorch_model.bin, which may run code" in done.stderr
    command = re.search(r'python -c "(.+)"', done.stderr)[1]
    subprocess.run([sys.executable, "-c", command], cwd=folder, check=True)
    assert load_file(folder / "model.safetensors").keys() == weights.keys()
    scores = [json.loads(run(["predict", "--model", model, "--text", "goal"]).stdout)["scores"] for model in (folder, classifier)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_a_vocabulary_that_is_too_large_is_told_by_its_last_token(classifier, tmp_path):
    folder = changed(classifier, tmp_path / "larger", lambda weights: None)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {f"word{i}": len(vocab) + i for i in range(20)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert done.returncode == 1 and "; the last token is word19. Does the vocabulary belong to another model?" in done.stderr, done.stderr


def test_a_folder_that_is_not_there_is_said_to_be_none(tmp_path):
    done = run(["predict", "--model", tmp_path / "nothing", "--text", "goal"])
    assert f"{tmp_path}/nothing: there is no such folder." in done.stderr, done.stderr


def renamed(classifier, folder, rename):
    def change(weights):
        for key in list(weights):
            weights[rename(key)] = weights.pop(key)

    return changed(classifier, folder, change)


def test_weights_under_the_names_of_wrappers_are_read(classifier, data, tmp_path):
    """Which torch.compile, DistributedDataParallel, FSDP and activation checkpointing put around a model, or a part of it."""
    given = ["--text", "goal law", "--logits"]
    expected = trained(["predict", "--model", classifier, *given]).stdout
    layer = "layer.0."
    for number, (inside, put) in enumerate([
            ("", "_orig_mod."), ("", "module."), ("", "module._orig_mod."), ("", "_orig_mod.module."), ("", "_fsdp_wrapped_module._orig_mod."),
            (layer, "layer.0._checkpoint_wrapped_module."), (layer, "layer.0._fsdp_wrapped_module._checkpoint_wrapped_module.")]):
        folder = renamed(classifier, tmp_path / str(number), lambda key: key.replace(inside, put) if inside else put + key)  # noqa: B023
        done = trained(["predict", "--model", folder, *given])
        assert (done.stdout, done.stderr) == (expected, ""), put
    # The head among them: training goes on with it.
    done = trained(["train", "--model", folder.parent / "2", "--train", data / "train.jsonl", "--dev", data / "dev.jsonl", "--output", tmp_path / "out",
                    "--max-steps", 1, "--max-length", 16])
    assert "initialised" not in done.stderr, done.stderr


def test_an_unknown_word_before_all_names_is_told(classifier, tmp_path):
    name = "bert.embeddings.word_embeddings.weight"
    rest = "rename the tensors in Python with load_file and save_file of safetensors\n"
    for prefix in "net.", "model.", "module.net.":
        folder = renamed(classifier, tmp_path / prefix, lambda key: prefix + key)  # noqa: B023
        done = run(["predict", "--model", folder, "--text", "goal"])
        assert done.returncode == 1 and done.stderr == (
            f"mezzo predict: {folder}/model.safetensors: has no tensor {name}, which config.json requires; it has {prefix}{name}, with \"{prefix}\" "
            f"before the name. Save the inner model, or {rest}")
    folder = renamed(classifier, tmp_path / "other", lambda key: key.replace("bert.", "roberta."))
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert f'with "roberta." in place of "bert.". Correct model_type in config.json, or {rest}' in done.stderr, done.stderr


def test_the_weights_of_a_model_inside_an_adapter_are_told(classifier, tmp_path):
    """As the state dict of a model of peft 0.17 has them."""
    def wrap(weights):
        for key in list(weights):
            tensor = weights.pop(key)
            if key.endswith("query.weight"):
                name = key.removesuffix("weight")
                weights[f"base_model.model.{name}lora_A.default.weight"] = torch.zeros(2, 8)
                weights[f"base_model.model.{name}lora_B.default.weight"] = torch.zeros(8, 2)
                key = name + "base_layer.weight"
            weights["base_model.model." + key] = tensor

    folder = changed(classifier, tmp_path / "peft", wrap)
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert done.returncode == 1 and done.stderr.endswith(
        ", so the model is inside an adapter of PEFT. In Python, peft's merge_and_unload() and save_pretrained() make a whole model of it\n")
    assert "it has base_model.model.bert." in done.stderr


def test_float8_weights_with_scales_are_refused(classifier, tmp_path):
    def quantize(weights, name="bert.encoder.layer.0.output.dense.weight", scale="_scale"):
        tensor = weights[name]
        scales = tensor.abs().amax(1, keepdim=True) / 448
        weights[name] = (tensor / scales).to(torch.float8_e4m3fn)
        if scale:
            weights[name + scale] = scales

    for scale in ("_scale", "_scale_inv"):
        folder = changed(classifier, tmp_path / scale, lambda weights: quantize(weights, scale=scale))  # noqa: B023
        done = run(["predict", "--model", folder, "--text", "goal"])
        name = "bert.encoder.layer.0.output.dense.weight"
        assert done.returncode == 1 and done.stderr == (
            f"mezzo predict: {folder}/model.safetensors: {name} is Float8_e4m3fn with a scale, {name}{scale}, so it is quantized. mezzo reads only weights "
            "without scales. Use the unquantized model\n")
    run(["predict", "--model", changed(classifier, tmp_path / "cast", lambda weights: quantize(weights, scale="")), "--text", "goal"]).check_returncode()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict(quantization_config=dict(quant_method="compressed-tensors"))))
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert 'config.json: quantization_config is {"quant_method":"compressed-tensors"}, which mezzo does not support; its weights are quantized' in done.stderr


def test_an_adapter_is_no_model(classifier, data, tmp_path):
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(dict(peft_type="LORA", r=4)))
    save_file({"base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight": torch.zeros(4, 8)}, folder / "adapter_model.safetensors")
    said = (f"{folder}: holds a LoRA adapter (adapter_config.json), not a whole model. In Python, peft's merge_and_unload() and save_pretrained() make "
            "a whole model of it.\n")
    for command in (["predict", "--text", "goal"], ["eval", "--data", data / "dev.jsonl"], ["tokenize"],
                    ["train", "--train", data / "train.jsonl", "--dev", data / "dev.jsonl", "--output", tmp_path / "out"],
                    ["export", "--onnx", tmp_path / "m.onnx"], ["check-int8", "--data", data / "dev.jsonl"], ["serve"]):
        done = run([*command, "--model", folder])
        assert done.returncode == 1 and done.stderr == f"mezzo {command[0]}: {said}", done.stderr
    # Transformers chooses the base model to which it adds it, and ignores the other files.
    both = changed(classifier, tmp_path / "both", lambda weights: None)
    shutil.copy(folder / "adapter_config.json", both)
    for command in ["predict", "--text", "goal"], ["train", "--train", data / "train.jsonl", "--output", tmp_path / "out"]:
        done = run([*command, "--model", both])
        assert done.returncode == 1 and done.stderr == (
            f"mezzo {command[0]}: {both}: holds an adapter (adapter_config.json) beside a model. Remove the adapter's files to use the model alone.\n")
    (both / "adapter_config.json").unlink()
    trained(["predict", "--model", both, "--text", "goal"])
    # OUTPUT of a run holds the merged model if the run had --lora; else it is another model.
    output = shutil.copytree(classifier, tmp_path / "output")
    shutil.copytree(folder, output / "adapter")
    done = run(["predict", "--model", output / "adapter", "--text", "goal"])
    assert done.stderr.endswith("make a whole model of it.\n"), done.stderr
    record = json.loads((output / "run.json").read_text())
    assert record["settings"]["lora"] == "0"
    record["settings"]["lora"] = "4"
    (output / "run.json").write_text(json.dumps(record))
    done = run(["predict", "--model", output / "adapter", "--text", "goal"])
    assert done.stderr.endswith(f"not a whole model. Name {output}/, which holds the merged model.\n"), done.stderr


def test_a_folder_that_cannot_be_read_is_no_adapter(data, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for command in ["predict", "--text", "goal"], ["train", "--train", data / "train.jsonl", "--output", tmp_path / "out"]:
        done = run([*command, "--model", tmp_path / "loop"])
        assert done.returncode == 1 and done.stderr.startswith(
            f"mezzo {command[0]}: {tmp_path}/loop: cannot be read: Too many levels of symbolic links"), done.stderr


def test_a_config_that_is_none_is_told_plainly(classifier, tmp_path):
    folder = changed(classifier, tmp_path / "model", lambda weights: None)
    config = json.loads((folder / "config.json").read_text())
    for written, message in (
            (b"[]", "the file holds a JSON array, not an object."),
            (b"{}", "has no model_type. Add the model's, one of bert, camembert, deberta-v2, distilbert, electra, modernbert, roberta, xlm-roberta."),
            (json.dumps(config).encode("utf-16"), "the file is UTF-16. Save it as UTF-8."),
            (json.dumps(config | dict(pruned_heads={"0": [1]})).encode(), 'pruned_heads is {"0":[1]}, which mezzo does not support'),
            (json.dumps(config | dict(problem_type="regression")).encode(), "id2label has 3 names; a model for regression has one output"),
            (json.dumps(config | dict(id2label=["a", "b"])).encode(),
             'id2label is not an object of ids and names, as {"0": "negative", "1": "positive"}')):
        (folder / "config.json").write_bytes(written)
        done = run(["predict", "--model", folder, "--text", "goal"])
        assert done.returncode == 1 and done.stderr == f"mezzo predict: {folder}/config.json: {message}\n", done.stderr


def test_labels_of_another_task_name_a_way_that_the_command_has(classifier, tmp_path):
    """eval and quantize have no --task; train needs --new-head for another task."""
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\ngoal,\"['joy', 'love']\"\nteam,\"['joy']\"\n")
    for command in ["eval", "--data"], ["check-int8", "--data"]:
        done = run([*command, rows, "--model", classifier])
        assert done.returncode == 1 and done.stderr.endswith(", with a model trained with --task multi_label_classification.\n"), done.stderr
    train = ["train", "--model", classifier, "--train", rows, "--output", tmp_path / "out", "--dev-ratio", 0, "--max-steps", 1, "--max-length", 16]
    done = run(train)
    assert done.returncode == 1 and done.stderr.endswith(", with --new-head --task multi_label_classification.\n"), done.stderr
    rows.write_text("text,label\ngoal,joy|love\nteam,joy\n")
    trained([*train, "--new-head", "--task", "multi_label_classification"])


def test_stars_for_a_trained_head_of_other_labels_advise_a_new_one(classifier, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\ngoal,5\nteam,1\n")
    done = run(["train", "--model", classifier, "--train", rows, "--output", tmp_path / "out", "--dev-ratio", 0, "--max-steps", 1, "--max-length", 16])
    assert done.returncode == 1 and "row 1: unknown label '5'. The labels, numbered from 0, are: " in done.stderr
    assert done.stderr.endswith("They come from the model's trained head; --new-head trains a head for other labels.\n"), done.stderr


def test_an_op_policy_without_ops_is_refused(tmp_path):
    (tmp_path / "empty.toml").touch()
    done = run(["ops", "--policy", tmp_path / "empty.toml"])
    assert done.returncode == 1 and done.stderr == (
        f'mezzo ops: {tmp_path}/empty.toml: lists no op. Give it a preset, as preset = "cuda", or lines under [ops].\n')


def test_a_config_in_the_working_folder_needs_no_path(data, tmp_path):
    """An adapter beside it does not matter: only its config is read."""
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "adapter_config.json").write_text("{}")
    bare = [word.removeprefix(f"{folder}/") for word in flags(folder, tmp_path / "out", "--max-steps", 1)]
    assert "config.json" in bare
    done = subprocess.run([PROGRAM, *bare], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
