"""mezzo's operators as Python sees them: torch.ops.mezzo, checked by torch.library.opcheck and against transformers."""
import pytest
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

import _mezzo  # noqa: F401  registers them


def arguments(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def attention_of(heads, window=None, is_causal=False, only_first_queries=False, scale=None, soft_cap=0.0, rotary=None):
    """A description: no dropout, no relative positions."""
    return torch.classes.mezzo.Attention(heads, 0.0, 0, 0, 0, None, window, is_causal, only_first_queries, scale, soft_cap, rotary, None)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_attention_is_pytorchs_for_each_sequence(dtype, tolerance, is_causal):
    torch.manual_seed(0)
    lengths = [5, 1, 600]
    cu_seqlens = torch.tensor([0, 5, 6, 606], dtype=torch.int32)
    layout = torch.classes.mezzo.SequenceLayout(cu_seqlens, torch.tensor(lengths, dtype=torch.int32), 606, torch.device("cpu"))
    rows = [torch.randn(606, 32).to(dtype) for _ in range(3)]
    grad = torch.randn(606, 32)

    def theirs(*rows):
        heads = [[part.view(1, -1, 2, 16).transpose(1, 2) for part in x.split(lengths)] for x in rows]
        parts = [torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal) for q, k, v in zip(*heads)]
        return torch.cat([part.transpose(1, 2).reshape(-1, 32) for part in parts])

    def outcome(attend, dtype):
        leaves = [x.detach().clone().to(dtype).requires_grad_() for x in rows]
        out = attend(*leaves)
        out.backward(grad.to(dtype))
        return [out.detach(), *(x.grad for x in leaves)]

    mine = outcome(lambda q, k, v: torch.ops.mezzo.packed_attention(q, k, v, layout, attention_of(2, is_causal=is_causal)), dtype)
    for a, b in zip(mine, outcome(theirs, torch.float64)):
        assert (a.double() - b).norm() <= tolerance * b.norm()


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
                                                   out.LayerNorm.bias, 1e-12, layout, attention_of(3), 0.0, 0)
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
