"""BertForSequenceClassification on packed rows against transformers: logits, gradients, loading and saving."""
import copy
import json
import shutil

import _mezzo
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import MINILM, check_gradients, mixed_ids, padded, random_bert
from transformers import BertForSequenceClassification, BertForTokenClassification

BATCHINGS = ["packed", "dynamic", "grouped", "padded"]


# BERT-base differs in size alone.
MODELS = ["minilm", pytest.param("bert_base", marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    """The pretrained encoder with a random classifier of 18 labels, saved by transformers."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("minilm")
    model = BertForSequenceClassification.from_pretrained(MINILM, num_labels=18).eval()
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def bert_base(tmp_path_factory):
    return random_bert(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def once():
    """What `compute` gives, computed for a key once: transformers' numbers, which all ways of batching are compared with."""
    computed = {}

    def get(key, compute):
        if key not in computed:
            computed[key] = compute()
        return computed[key]

    return get


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_logits_are_those_of_transformers_for_mixed_lengths(name, batching, request, once):
    model, folder = request.getfixturevalue(name)
    ids = mixed_ids([2, 3, 17, 64, 1, 40, 128, 9], vocab_size=model.config.vocab_size)
    mine = _mezzo.Model(str(folder))
    mine.train(False)
    with torch.no_grad():
        expected = once((name, "logits"), lambda: model(**padded(ids)).logits)
        actual = mine.forward(ids, batching=batching, max_length=128)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_outputs_for_each_token_are_those_of_transformers(bert_base, tmp_path):
    model = BertForTokenClassification(bert_base[0].config).eval()
    model.save_pretrained(tmp_path)
    ids = mixed_ids([2, 3, 17, 64, 1, 40], vocab_size=model.config.vocab_size)
    mine = _mezzo.Model(str(tmp_path), per_token=True)
    assert mine.initialised == [], "no pooler"
    actual = mine.predict(ids)
    assert actual.shape == (6, 64, model.config.num_labels)
    with torch.no_grad():
        expected = model(**padded(ids)).logits
    for text, row, reference in zip(ids, actual, expected):
        torch.testing.assert_close(row[:len(text)], reference[:len(text)], rtol=0, atol=1e-5)
        assert row[len(text):].count_nonzero() == 0


def types_of_pairs(ids, seed=0):
    """0 up to somewhere within each text, 1 from there on."""
    generator = torch.Generator().manual_seed(seed)
    firsts = [int(torch.randint(0, len(row) + 1, (), generator=generator)) for row in ids]
    return [[0] * first + [1] * (len(row) - first) for row, first in zip(ids, firsts)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batching", BATCHINGS)
def test_logits_of_pairs_are_those_of_transformers(name, batching, request, once):
    model, folder = request.getfixturevalue(name)
    ids = mixed_ids([2, 3, 17, 64, 1, 40, 128, 9], vocab_size=model.config.vocab_size)
    token_types = types_of_pairs(ids)
    mine = _mezzo.Model(str(folder))
    mine.train(False)
    with torch.no_grad():
        expected = once((name, "logits of pairs"), lambda: model(**padded(ids, token_types)).logits)
        of_one_type = once((name, "logits"), lambda: model(**padded(ids)).logits)
        actual = mine.forward(ids, batching=batching, max_length=128, token_types=token_types)
    assert (expected - of_one_type).abs().max() > 1e-3, "the types matter"
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def loss_gradients(model, ids, labels, token_types=None):
    model.zero_grad()
    model(**padded(ids, token_types), labels=labels).loss.backward()
    return {key: tensor.grad.clone() for key, tensor in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batching", ["packed", "dynamic"])
@pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])
def test_gradients_of_every_parameter_are_those_of_transformers(name, batching, pairs, request, once):
    model, folder = request.getfixturevalue(name)
    ids = mixed_ids([5, 31, 12, 2, 50], vocab_size=model.config.vocab_size)
    labels = torch.tensor([0, 1, 1, 0, 1])
    token_types = types_of_pairs(ids) if pairs else []
    theirs = once((name, pairs, "float32"), lambda: loss_gradients(model, ids, labels, token_types or None))
    exact = once((name, pairs, "float64"), lambda: loss_gradients(copy.deepcopy(model).double(), ids, labels, token_types or None))
    mine = _mezzo.Model(str(folder))
    mine.train(False)  # eval mode also switches dropout off in transformers
    torch.nn.functional.cross_entropy(mine.forward(ids, batching=batching, token_types=token_types), labels).backward()

    gradients = {key: tensor.grad for key, tensor in mine.parameters().items()}
    check_gradients(gradients, theirs, exact)


def test_dropout_masks_depend_on_seed_and_step_alone(minilm):
    _, folder = minilm
    mine = _mezzo.Model(str(folder))
    mine.train(True)
    ids = mixed_ids([7, 20, 33], vocab_size=30522)
    first = mine.forward(ids, seed=1, step=5)
    torch.manual_seed(99)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(first, mine.forward(ids, seed=1, step=5))
    torch.set_num_threads(threads)
    assert not torch.allclose(first, mine.forward(ids, seed=1, step=6))
    assert not torch.allclose(first, mine.forward(ids, seed=2, step=5))


def test_a_loss_with_dropout_is_reproduced_in_backward(minilm):
    """Masks are not stored: backward draws them again. Checked by a directional finite difference in float64."""
    _, folder = minilm
    mine = _mezzo.Model(str(folder))
    mine.train(True)
    parameters = mine.parameters()
    for tensor in parameters.values():
        tensor.data = tensor.data.double()
    ids = mixed_ids([7, 20, 33], vocab_size=30522)
    labels = torch.tensor([1, 2, 3])

    def loss():
        return torch.nn.functional.cross_entropy(mine.forward(ids, seed=3, step=4), labels)

    loss().backward()
    generator = torch.Generator().manual_seed(0)
    direction = {k: torch.randn(t.shape, generator=generator, dtype=torch.float64) for k, t in parameters.items()}
    slope = sum((direction[k] * t.grad).sum() for k, t in parameters.items())
    step = 1e-6  # error of a central difference: step^2 from the curve, 1e-16 / step from rounding
    with torch.no_grad():
        for k, t in parameters.items():
            t += step * direction[k]
        above = loss()
        for k, t in parameters.items():
            t -= 2 * step * direction[k]
        below = loss()
    assert torch.isclose((above - below) / (2 * step), slope, rtol=1e-5), ((above - below) / (2 * step), slope)


def rewrite(folder, target, change):
    """A copy of a model folder with its tensors changed by `change(dict)`."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), target / "model.safetensors")
    return target


def with_labels(folder, labels):
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    (folder / "config.json").write_text(json.dumps(config))


def test_names_without_prefix_and_old_layer_norm_names_are_understood(minilm, tmp_path):
    model, folder = minilm

    def old_style(tensors):
        renamed = {}
        for name, tensor in tensors.items():
            name = name.removeprefix("bert.")
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            renamed[name] = tensor
        return renamed

    old = _mezzo.Model(str(rewrite(folder, tmp_path / "old", old_style)))
    for name, tensor in model.named_parameters():
        assert torch.equal(old.parameters()[name], tensor), name
    assert old.initialised == [] and old.unused == []


def test_what_is_missing_is_initialised_and_said(tmp_path):
    folder = tmp_path / "bare"
    shutil.copytree(MINILM, folder, ignore=shutil.ignore_patterns("*.md", "1_*"))
    tensors = load_file(folder / "model.safetensors")
    save_file({k: t for k, t in tensors.items() if "pooler" not in k} | {"cls.bias": torch.zeros(3)},
              folder / "model.safetensors")
    with_labels(folder, 3)
    mine = _mezzo.Model(str(folder), seed=5)
    assert mine.initialised == ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]
    assert "cls.bias" in mine.unused
    weight = mine.parameters()["classifier.weight"]
    assert 0.01 < weight.std() < 0.03, "normal(0, initializer_range = 0.02)"
    assert torch.equal(weight, _mezzo.Model(str(folder), seed=5).parameters()["classifier.weight"])
    assert not torch.equal(weight, _mezzo.Model(str(folder), seed=6).parameters()["classifier.weight"])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: {k: v for k, v in t.items() if k != "bert.encoder.layer.3.output.dense.bias"},
         "has no tensor bert.encoder.layer.3.output.dense.bias, which config.json requires"),
        (lambda t: t | {"bert.pooler.dense.bias": torch.zeros(7)},
         r"bert.pooler.dense.bias is Float\[7\], the model needs Float\[384\] by config.json"),
        (lambda t: t | {"classifier.weight": torch.zeros(2, 384)},
         r"classifier.weight is Float\[2, 384\], the model needs Float\[18, 384\] \(one row per label of the data\)"),
        (lambda t: t | {"bert.pooler.dense.bias": torch.zeros(384, dtype=torch.int32)}, r"is Int\[384\]"),
        (lambda t: t | {"pooler.dense.bias": torch.zeros(384)}, "holds bert.pooler.dense.bias twice"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(minilm, tmp_path, change, message):
    folder = rewrite(minilm[1], tmp_path / "broken", change)
    with pytest.raises(ValueError, match=message):
        _mezzo.Model(str(folder))


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("model_type", "gpt2", 'model_type is "gpt2", mezzo supports: bert'),
        ("hidden_act", "swish", "hidden_act is \"swish\", mezzo supports: gelu"),
        ("hidden_size", 0, "hidden_size is 0, expected an integer from 1"),
        ("hidden_size", "many", 'hidden_size is "many"'),
        ("num_attention_heads", 7, "hidden_size is 384, which 7 attention heads cannot divide"),
        ("position_embedding_type", "relative_key", "position_embedding_type"),
        ("problem_type", "chess", "mezzo supports: single_label_classification, multi_label_classification, regression"),
        ("hidden_dropout_prob", 1.0, "hidden_dropout_prob is 1.0, expected a number from 0 to below 1"),
        ("id2label", {"0": "a", "2": "b"}, 'id2label has the entry "2"'),
        ("pad_token_id", 99999, "pad_token_id is 99999, outside the vocabulary of 30522"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused_by_field(minilm, tmp_path, field, value, message):
    shutil.copytree(minilm[1], tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text()) | {field: value}
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        _mezzo.Model(str(tmp_path / "m"))


def test_a_pickle_is_refused_with_the_way_out(tmp_path):
    shutil.copy(MINILM / "config.json", tmp_path)
    with_labels(tmp_path, 2)
    (tmp_path / "pytorch_model.bin").write_bytes(b"whatever")
    with pytest.raises(ValueError, match="only a pickle such as pytorch_model.bin, which may run code"):
        _mezzo.Model(str(tmp_path))
