"""Models in int8 against transformers' models whose linear layers torch rounds in the same way."""
import _mezzo
import pytest
import torch
from families import FAMILIES
from support import mixed_ids, padded

STEPS = 255

pytestmark = pytest.mark.skipif(not _mezzo.has_int8_products(), reason="this processor has no products of int8")


def int8_rows(x):
    """Each row rounded to STEPS steps from its least number, or 0, to its largest, or 0."""
    least, most = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = (most - least) / STEPS
    first = (least / scale).round()
    return (x / scale).round().clamp(first, first + STEPS) * scale


def int8_weight(weight):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round() * scale


def round_layers(model, length, attends_to_all):
    """Of the encoder's layers. Rows of anything except `length` tokens, such as DeBERTa's positions, stay unchanged. So do
    query, key and value of the last layer, unless its attention is of all tokens."""
    last = f"layer.{model.config.num_hidden_layers - 1}.attention."
    output = ("output.dense", "out_lin")
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and ".layer" in name and (attends_to_all or last not in name or name.endswith(output)):
            def forward(x, layer=layer, weight=int8_weight(layer.weight.detach())):
                is_text = x.shape[-2] == length
                return torch.nn.functional.linear(int8_rows(x) if is_text else x, weight if is_text else layer.weight, layer.bias)
            layer.forward = forward


def rms(difference):
    return difference.float().square().mean().sqrt().item()


@pytest.mark.parametrize("per_token", [True, False], ids=["tokens", "texts"])
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra", "deberta-v3", "modernbert"])
def test_outputs_are_those_of_layers_that_torch_rounds(name, per_token, tmp_path):
    length = 29
    model = FAMILIES[name].model(tmp_path, per_token=per_token)
    ids = mixed_ids([length] * 40, vocab_size=model.config.vocab_size)
    mine = _mezzo.Model(str(tmp_path), per_token=per_token)
    mine.train(False)

    def outputs(autocast=False):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return mine.forward(ids)[:len(ids) * (length if per_token else 1)]  # behind them filler

    with torch.no_grad():
        exact, exact_bf16 = outputs(), outputs(autocast=True)
        mine.quantize()
        rounded, rounded_bf16 = outputs(), outputs(autocast=True)
        round_layers(model, length, attends_to_all=per_token or name in ("deberta-v3", "modernbert"))
        expected = model(**padded(ids, pad_id=model.config.pad_token_id)).logits.flatten(0, -2)
    effect = rms(rounded - exact)
    # Numbers that lie halfway between two integers go either way after the first rounding of float32 that differs.
    assert rms(rounded - expected) < effect / 3
    assert effect < 0.1 * exact.std().item()
    # bf16 rounds as much between int8 products as between its own, and makes more numbers go the other way.
    assert rms(rounded_bf16 - rounded) < 2 * rms(exact_bf16 - exact) + effect


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_those_of_the_weights(tmp_path, training, checkpointing):
    FAMILIES["bert"].model(tmp_path)
    ids = mixed_ids([9, 17, 30], vocab_size=120)
    gradients = []
    for is_int8 in (False, True):
        mine = _mezzo.Model(str(tmp_path))
        mine.train(training)
        mine.set_gradient_checkpointing(checkpointing)
        if is_int8:
            mine.quantize()
        logits = mine.forward(ids)
        logits.square().sum().backward()
        gradients.append([logits.detach()] + [parameter.grad for parameter in mine.parameters().values()])
    for left, right in zip(*gradients, strict=True):
        assert torch.equal(left, right)


def test_a_weight_that_changes_is_made_int8_anew(tmp_path):
    FAMILIES["bert"].model(tmp_path)
    ids = mixed_ids([9, 17, 30], vocab_size=120)
    mine, other = _mezzo.Model(str(tmp_path)), _mezzo.Model(str(tmp_path))
    for model in (mine, other):
        model.train(False)
    mine.quantize()
    with torch.no_grad():
        before = mine.forward(ids)
        for model in (mine, other):
            model.parameters()["bert.encoder.layer.0.output.dense.weight"].mul_(1.5)
        other.quantize()
        assert torch.equal(mine.forward(ids), other.forward(ids))
        assert not torch.equal(mine.forward(ids), before)
