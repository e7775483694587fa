"""mezzo's operators as Python sees them: torch.ops.mezzo, checked by torch.library.opcheck and against transformers."""
import pytest
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

import _mezzo  # noqa: F401  registers them


def arguments(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def test_dropout_passes_pytorchs_own_checks():
    x, = arguments((5, 33))
    torch.library.opcheck(torch.ops.mezzo.dropout.default, (x, 0.25, 1, 2, 3),
                          test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))


def test_residual_layer_norm_passes_pytorchs_own_checks():
    x, residual, weight, bias = arguments((5, 33), (5, 33), (33,), (33,))
    torch.library.opcheck(torch.ops.mezzo.residual_layer_norm.default, (x, residual, weight, bias, 1e-5, 0.25, 1, 2, 3, None),
                          test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_blocks_are_a_layer_of_transformers(activation):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=24, num_attention_heads=3, intermediate_size=50, hidden_act=activation, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)
    layer = BertLayer(config)
    lengths = [4, 1, 7]
    rows = torch.randn(sum(lengths), 24)
    cu_seqlens = torch.tensor([0, 4, 5, 12], dtype=torch.int32)
    layout = torch.classes.mezzo.SequenceLayout(cu_seqlens, torch.tensor(lengths, dtype=torch.int32), 12, torch.device("cpu"))

    def mine(x):
        own, out = layer.attention.self, layer.attention.output
        linear = [own.query, own.key, own.value, out.dense]
        attended = torch.ops.mezzo.attention_block(x, [m.weight for m in linear], [m.bias for m in linear], [], out.LayerNorm.weight,
                                                   out.LayerNorm.bias, 1e-12, 3, layout, 0.0, 0.0, 0, 0, 0, 0)
        linear = [layer.intermediate.dense, layer.output.dense]
        return torch.ops.mezzo.feed_forward_block(attended, [m.weight for m in linear], [m.bias for m in linear], [], activation,
                                                  layer.output.LayerNorm.weight, layer.output.LayerNorm.bias, 1e-12, 0.0, 0, 0, 0, None)

    def theirs(x):
        return torch.cat([layer(part.unsqueeze(0))[0].reshape(-1, 24) for part in x.split(lengths)])

    grad = torch.randn_like(rows)
    results = []
    for run in (mine, theirs):
        layer.zero_grad()
        x = rows.clone().requires_grad_()
        value = run(x)
        value.backward(grad)
        results.append([value.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-6)  # float32, sums in another order


def test_a_wrong_activation_is_refused():
    x, up, down, inner, bias = arguments((2, 8), (9, 8), (8, 9), (9,), (8,))
    with pytest.raises(ValueError, match="activation is 'swish', expected gelu, gelu_tanh or relu"):
        torch.ops.mezzo.feed_forward_block(x, [up, down], [inner, bias], [], "swish", bias, bias, 1e-5, 0.0, 0, 0, 0, None)


def test_the_profiler_sees_the_operators():
    x = torch.randn(5, 33)
    with torch.profiler.profile() as profile:
        torch.ops.mezzo.dropout(x, 0.25, 1, 2, 3)
    assert "mezzo::dropout" in {event.name for event in profile.events()}
