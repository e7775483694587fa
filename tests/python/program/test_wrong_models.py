"""Folders that look like a trained classifier of texts and are none, or not a whole one."""
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
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
    assert done.stderr == (f"mezzo predict: {answerer}/config.json: it is a ModernBertForQuestionAnswering, so no trained "
                           "classifier of texts or words; mezzo train makes one of it\n")


def test_training_gives_such_a_model_a_head_of_its_own(answerer, data, tmp_path):
    given = flags(data, tmp_path / "out")
    at = given.index("--model-config")
    done = trained([*given[:at], "--model", answerer, *given[at + 4:]])
    assert f"not in {answerer}, so initialised: classifier.weight, classifier.bias" in done.stderr
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
    assert f"warning: {folder}/model.safetensors: bert.encoder.layer.0.output.dense.weight holds inf or NaN; fetch the file again\n" in done.stderr


def test_a_vocabulary_that_is_too_large_is_told_by_its_last_token(classifier, tmp_path):
    folder = changed(classifier, tmp_path / "larger", lambda weights: None)
    with open(folder / "vocab.txt", "a") as vocab:
        vocab.write("\n".join(f"word{i}" for i in range(20)) + "\n")
    done = run(["predict", "--model", folder, "--text", "goal"])
    assert done.returncode == 1 and "; the last is word19. Is it another model's?" in done.stderr, done.stderr


def test_a_folder_that_is_not_there_is_said_to_be_none(tmp_path):
    done = run(["predict", "--model", tmp_path / "nothing", "--text", "goal"])
    assert f"{tmp_path}/nothing: is no folder; name a Hugging Face folder" in done.stderr, done.stderr
