"""CpuHalfCompute against LibTorch's own half kernels, both measured by their distance from float64."""
import itertools
from pathlib import Path

import _mezzo
import pytest
import torch
import torch.nn.functional as F

FLAGS = Path("/proc/cpuinfo").read_text().split()
HALVES = [
    pytest.param(dtype, marks=pytest.mark.skipif(flag in FLAGS, reason=f"{flag}: {dtype} is left to oneDNN"))
    for dtype, flag in [(torch.float16, "avx512_fp16"), (torch.bfloat16, "avx512_bf16")]
]


def g(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def products():
    a, b, bias = g(33, 70), g(70, 21), g(21)
    batch, right, sums = g(4, 9, 70), g(4, 70, 21), g(4, 9, 21)
    yield "mm", torch.mm, [a, b]
    yield "mm of views", lambda a, b: a.t().mm(b.t()), [g(70, 33), g(21, 70)]
    yield "mm of slices", lambda a, b: a[::2].mm(b[:, ::3]), [a, b]
    yield "mm of nothing", torch.mm, [g(5, 0), g(0, 7)]
    yield "addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [bias, a, b]
    yield "linear", F.linear, [g(2, 5, 70), b.t().contiguous(), bias]
    yield "bmm", torch.bmm, [batch, right]
    yield "baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=0.5), [sums, batch, right]
    yield "addbmm", torch.addbmm, [g(9, 21), batch, right]
    yield "einsum", lambda x, y: torch.einsum("bij,kj->bik", x, y), [batch, g(5, 70)]


def broadcasts():
    """Products of expanded tensors: autograd adds their gradients up in the half dtype."""
    yield "bmm of one matrix expanded", lambda x, y: x.bmm(y.expand(4, 70, 21)), [g(4, 9, 70), g(70, 21)]
    yield "matmul", torch.matmul, [g(2, 1, 6, 8), g(3, 8, 5)]


def convolutions():
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
    transposed = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
    size = {1: 40, 2: 12, 3: 7}
    settings = [{}, {"stride": 2, "padding": 1}, {"dilation": 2}, {"groups": 2}, {"groups": 2, "padding": 2, "dilation": 2}]
    for dims, (n, setting), bias in itertools.product((1, 2, 3), enumerate(settings), (True, False)):
        groups = setting.get("groups", 1)
        x, kernel = g(2, 8, *[size[dims]] * dims), [3] * dims
        for name, op, weight in [
            ("conv", conv[dims], g(6, 8 // groups, *kernel)),
            ("conv_transpose", transposed[dims], g(8, 6 // groups, *kernel)),
        ]:
            tensors = [x, weight] + [g(6)] * bias
            yield f"{name}{dims}d {setting} {'bias' * bias}", lambda *t, op=op, s=setting: op(*t, **s), tensors
    yield "depthwise", lambda x, w: F.conv2d(x, w, groups=8, padding=1), [g(2, 8, 9, 9), g(8, 1, 3, 3)]
    yield "pointwise", F.conv2d, [g(2, 8, 9, 9), g(5, 8, 1, 1)]
    yield "no batch", F.conv2d, [g(8, 9, 9), g(5, 8, 3, 3)]
    last = g(2, 8, 9, 9).to(memory_format=torch.channels_last)
    yield "channels last", F.conv2d, [last, g(5, 8, 3, 3)]


def attentions():
    heads = [g(2, 3, 17, 8), g(2, 3, 17, 8), g(2, 3, 17, 8)]
    longer = [g(2, 3, 5, 8), g(2, 3, 30, 8), g(2, 3, 30, 8)]
    mask = torch.rand(5, 30) < 0.7
    mask[:, 0] = True
    yield "attention", F.scaled_dot_product_attention, heads
    yield "causal", lambda *t: F.scaled_dot_product_attention(*t, is_causal=True), heads
    yield "bool mask", lambda *t: F.scaled_dot_product_attention(*t, attn_mask=mask), longer
    yield "scale", lambda *t: F.scaled_dot_product_attention(*t, scale=0.2), longer
    bias = g(5, 30)
    yield "bias", lambda *t: F.scaled_dot_product_attention(*t, attn_mask=bias.to(t[0].dtype)), longer


torch.manual_seed(0)
ATTENTIONS = list(attentions())
CASES = list(products()) + list(convolutions())
ALL = CASES + list(broadcasts()) + ATTENTIONS


def run(op, tensors, output_grad=None):
    """The result and the gradient of every argument."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]
    output = op(*leaves)
    if output_grad is None:
        output_grad = torch.ones_like(output)
    return [output.detach(), *torch.autograd.grad(output, leaves, output_grad.to(output.dtype))]


def three_ways(op, tensors, dtype, call=run):
    """What `call` gives in float64 on rounded inputs, from LibTorch's half kernels, and from mezzo's."""
    halves = [t.to(dtype) for t in tensors]
    output_grad = g(*op(*tensors).shape).to(dtype)
    exact = call(op, [t.double() for t in halves], output_grad)
    libtorch = call(op, halves, output_grad)
    with _mezzo.CpuHalfCompute():
        mezzo = call(op, halves, output_grad)
    assert all(t.dtype == dtype for t in mezzo)
    assert [(t.shape, t.stride()) for t in mezzo[:1]] == [(t.shape, t.stride()) for t in libtorch[:1]]
    return list(zip(exact, libtorch, mezzo, strict=True))


def rms(error):
    return error.double().pow(2).mean().sqrt().item() if error.numel() else 0.0


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name, op, tensors", CASES, ids=[c[0] for c in CASES])
def test_every_result_and_gradient_is_rounded_once(name, op, tensors, dtype):
    for exact, _, mezzo in three_ways(op, tensors, dtype):
        # Half a step of the dtype, and what float32 adds up wrongly: 1e-5 of the largest sum. Below
        # the smallest normal number steps do not shrink further.
        step = torch.finfo(dtype).eps * exact.abs().clamp_min(torch.finfo(dtype).tiny)
        allowed = 0.5 * step + 1e-5 * exact.abs().max() if exact.numel() else step
        assert ((mezzo.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name, op, tensors", ALL, ids=[c[0] for c in ALL])
def test_rounding_is_no_worse_than_libtorchs(name, op, tensors, dtype):
    for exact, libtorch, mezzo in three_ways(op, tensors, dtype):
        # 2 %: where both round once, ties and last float32 bits fall either way.
        assert rms(mezzo.double() - exact) <= 1.02 * rms(libtorch.double() - exact)


def second_order(op, tensors, output_grad):
    """The gradients of a penalty on gradients, as for a gradient penalty or a Hessian-vector product."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    first = torch.autograd.grad(op(*leaves), leaves, output_grad.to(leaves[0].dtype), create_graph=True)
    penalty = sum(t.square().sum(dtype=torch.float64 if t.dtype == torch.float64 else torch.float32) for t in first) / 64
    grads = torch.autograd.grad(penalty, leaves, allow_unused=True)
    return [t for t in grads if t is not None]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name, op, tensors", CASES, ids=[c[0] for c in CASES])
def test_double_backward_works(name, op, tensors, dtype):
    for exact, libtorch, mezzo in three_ways(op, tensors, dtype, call=second_order):
        # Four kernels round after each other. 1.1: sums of several roundings scatter,
        # in small tensors the most.
        assert rms(mezzo.double() - exact) <= 1.1 * rms(libtorch.double() - exact) + 1e-6 * rms(exact)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("op, sizes", [
    (torch.mm, [(33, 70), (70, 21)]),
    (torch.bmm, [(4, 9, 70), (4, 70, 21)]),
    (torch.addmm, [(33, 21), (33, 70), (70, 21)]),
    (torch.baddbmm, [(4, 9, 21), (4, 9, 70), (4, 70, 21)]),
    (torch.addbmm, [(9, 21), (4, 9, 70), (4, 70, 21)]),
], ids=lambda x: getattr(x, "__name__", ""))
def test_out_and_in_place_forms_give_the_same_bits(op, sizes, dtype):
    tensors = [g(*size).to(dtype) for size in sizes]
    with _mezzo.CpuHalfCompute():
        expected = op(*tensors)
        transposed = torch.empty(expected.mT.shape, dtype=dtype).mT
        for out in (torch.empty_like(expected), torch.empty(0, dtype=dtype), transposed):
            strides = out.stride()
            assert op(*tensors, out=out) is out and torch.equal(out, expected)
            assert out.stride() == strides or out.is_contiguous()
        with pytest.raises(RuntimeError, match="dtype"):
            op(*tensors, out=torch.empty_like(expected, dtype=torch.float64))
        if len(sizes) == 3:
            in_place = getattr(tensors[0].clone(), op.__name__ + "_")
            version = in_place.__self__._version
            assert torch.equal(in_place(*tensors[1:]), expected)
            assert in_place.__self__._version == version + 1


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation_rounds_no_worse(use_gelu, dtype):  # has no gradient in LibTorch
    def op(c, a, b):
        return torch._addmm_activation(c, a, b, use_gelu=use_gelu)

    forward = lambda op, tensors, _: [op(*tensors)]  # noqa: E731
    for exact, libtorch, mezzo in three_ways(op, [g(21), g(33, 70), g(70, 21)], dtype, call=forward):
        assert rms(mezzo.double() - exact) <= 1.02 * rms(libtorch.double() - exact)


@pytest.mark.parametrize("fails", [
    lambda h, f: h.mm(f), lambda h, f: f.mm(h), lambda h, f: h.mm(h[:2]), lambda h, f: h[0].clone().addmm_(h, h),
    lambda h, f: F.conv1d(h[None], f[None]), lambda h, f: F.conv1d(h[None], h[None, :, :3], bias=f[0, :1]),
    lambda h, f: torch.addmm(f, h, h), lambda h, f: F.conv1d(h[None], h[None, :3]),
    lambda h, f: F.scaled_dot_product_attention(h[None, None], f[None, None], h[None, None]),
])
def test_errors_stay_libtorchs_own(fails):
    half, full = torch.randn(4, 4).half(), torch.randn(4, 4)
    with pytest.raises(RuntimeError) as expected:
        fails(half, full)
    with _mezzo.CpuHalfCompute(), pytest.raises(RuntimeError) as seen:
        fails(half, full)
    assert str(seen.value) == str(expected.value)


def test_results_overflow_as_the_dtype_does_but_sums_on_the_way_do_not():
    with _mezzo.CpuHalfCompute():
        large = torch.full((1, 1, 4), 30000.0).half()
        assert F.conv1d(large, torch.ones(1, 1, 4).half()).item() == float("inf")
        assert F.conv1d(large, torch.tensor([[[1.0, 1.0, 1.0, -1.0]]]).half()).item() == 60000
        assert F.conv1d(large, torch.tensor([[[1.0, 1.0, -1.0, -1.0]]]).half()).item() == 0


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("make", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_cells_round_no_worse(make, dtype):
    torch.manual_seed(0)
    cell, x = make(24, 16).to(dtype), torch.randn(9, 5, 24).to(dtype)
    exact = make(24, 16).double()
    exact.load_state_dict({k: v.double() for k, v in cell.state_dict().items()})
    expected, libtorch = exact(x.double())[0], cell(x)[0]
    with _mezzo.CpuHalfCompute():
        mezzo = cell(x)[0]
        mezzo.float().sum().backward()
    assert rms(mezzo.double() - expected) <= 1.1 * rms(libtorch.double() - expected)  # nine steps of rounding scatter
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())


def test_float32_results_are_the_same_bits_and_the_built_in_kernels_return():
    x, w = torch.randn(2, 4, 9, 9), torch.randn(3, 4, 3, 3)
    full, half = F.conv2d(x, w), F.conv2d(x.half(), w.half())
    with _mezzo.CpuHalfCompute():
        assert torch.equal(F.conv2d(x, w), full)
    assert torch.equal(F.conv2d(x.half(), w.half()), half)


@pytest.mark.parametrize("op", [
    "mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_", "addbmm",
    "addbmm.out", "addbmm_", "_addmm_activation", "_addmm_activation.out", "_convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
])
def test_slow_ops_are_taken_over_while_the_object_lives(op):
    def taken_over():
        return "cpu_half_compute" in torch._C._dispatch_dump("aten::" + op)

    with _mezzo.CpuHalfCompute():
        with _mezzo.CpuHalfCompute():
            pass
        assert taken_over()
    assert not taken_over()
