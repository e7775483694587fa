"""The tracer against brute force: every result of every op, looked at with a TorchDispatchMode."""
import threading

import mezzo
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

INF, NAN = float("inf"), float("nan")


def trace(function, **options):
    with mezzo.FiniteTracer(**options) as tracer:
        function()
        return tracer.first


def tensors(traced):
    return {t.name: (t.num_inf, t.num_minus_inf, t.num_nan) for t in traced}


@pytest.mark.parametrize("function, op, made", [
    (lambda: torch.log(torch.tensor([1.0, 0.0])), "aten::log", (0, 1, 0)),
    (lambda: torch.tensor([1.0, -1.0]).sqrt_(), "aten::sqrt_", (0, 0, 1)),
    (lambda: torch.ones(2) / torch.zeros(2), "aten::div.Tensor", (2, 0, 0)),
    (lambda: torch.tensor([1e5, 1.0]).half(), "aten::copy_", (1, 0, 0)),
    (lambda: torch.full((4, 4), 1e30) @ torch.full((4, 4), 1e30), "aten::mm", (16, 0, 0)),
    (lambda: F.linear(torch.full((4, 4), 1e30), torch.full((4, 4), 1e30), torch.ones(4)), "aten::addmm", (16, 0, 0)),
    (lambda: torch.full((2, 3), -INF).softmax(-1), "aten::_softmax", (0, 0, 6)),
    (lambda: torch._foreach_exp_([torch.ones(2), torch.full((2,), 100.0)]), "aten::exp_", (2, 0, 0)),
    (lambda: torch._amp_foreach_non_finite_check_and_unscale_(
        [torch.ones(3), torch.full((3,), 1e30)], torch.zeros(1), torch.full((1,), 1e30)),
     "aten::_amp_foreach_non_finite_check_and_unscale_", (3, 0, 0)),
    (lambda: torch.empty(2).copy_(torch.full((2,), 1e39, dtype=torch.float64)), "aten::copy_", (2, 0, 0)),
    (lambda: torch.exp(torch.tensor([100.0]), out=torch.empty(1).fill_(3.0)), "aten::exp.out", (1, 0, 0)),
    (lambda: torch.complex(torch.tensor(1e30), torch.tensor(0.0)) ** 2, "aten::pow.Tensor_Scalar", None),
    (lambda: torch.tensor(3.0).mul(torch.tensor(1e38)).mul(10), "aten::mul.Tensor", (1, 0, 0)),
    (lambda: torch.tensor(3.0).mul(torch.tensor(1e38)).add(torch.tensor([3e38])), "aten::add.Tensor", (1, 0, 0)),
])
def test_the_first_producer_is_named(function, op, made):
    first = trace(function)
    assert first.op == op and first.produced_here and not first.in_backward and first.backward_node == ""
    if made:
        assert tuple(map(sum, zip(*[(t.num_inf, t.num_minus_inf, t.num_nan) for t in first.outputs]))) == made


@pytest.mark.parametrize("function", [
    lambda: torch.randn(4, 4).masked_fill(torch.eye(4).bool(), -INF).softmax(-1).log_softmax(-1),
    lambda: torch.empty(1000).fill_(NAN).resize_(2000),
    lambda: (torch.full((3,), -INF) + torch.randn(3)).exp(),
    lambda: F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 8, 4), is_causal=True),
    lambda: torch.empty_like(torch.empty(10**6)),
    lambda: torch.empty(3).fill_(NAN).copy_(torch.ones(3)),
    lambda: torch.empty(3).fill_(NAN).normal_().zero_(),
    lambda: torch.randn(5).clamp(-INF, INF).max(),
    lambda: torch.randint(3, (4,)) + torch.tensor([True]),
    lambda: F.max_pool2d(torch.randn(1, 1, 4, 4), 2, padding=1),
    lambda: torch.empty(0).sum(),
])
def test_masks_allocations_and_finite_work_are_passed_over(function):
    assert trace(function) is None


def test_the_report_gives_ranges_before_the_op_changed_them():
    x = torch.tensor([-3.0, 0.0, 50.0])
    first = trace(lambda: x.log_())
    (before,) = first.inputs
    assert (before.name, before.shape, before.dtype, before.min, before.max) == ("self", [3], torch.float32, -3, 50)
    assert tensors(first.inputs) == {"self": (0, 0, 0)} and tensors(first.outputs) == {"output": (0, 1, 1)}
    assert str(first).splitlines() == [
        "aten::log_ produced inf or NaN in forward",
        "  self    float32 [3], finite values from -3 to 50",
        "  output  float32 [3], finite values from 3.91202 to 3.91202, 1 -inf, 1 NaN"]


def test_what_an_op_overwrites_is_no_input():
    garbage = torch.tensor([NAN, 1.0])
    first = trace(lambda: garbage.copy_(torch.tensor([1e300, 1.0], dtype=torch.float64)))
    assert first.produced_here and tensors(first.inputs) == {"src": (0, 0, 0)}


def test_a_float16_overflow_says_what_fits():
    assert str(trace(lambda: (torch.full((2,), 60000.0).half() * 2))).endswith("  float16 holds at most 65504\n")


def test_a_cast_that_overflows_is_named_with_the_op_that_computed_the_values():
    first = trace(lambda: torch.full((4, 4), 300.0).mm(torch.full((4, 4), 300.0)).t()[1:].contiguous().half())
    assert (first.op, first.source) == ("aten::copy_", "aten::mm")
    assert str(first).splitlines()[0] == "a cast from float32 to float16 of the result of aten::mm produced inf or NaN in forward"
    weight = torch.tensor([1e5])
    first = trace(lambda: [torch.ones(9).exp() for _ in range(9)] and weight.half())
    assert first.source == "" and str(first).startswith("a cast from float32 to float16 produced inf or NaN in forward")


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_looked_at_like_any_other_dtype(dtype):
    assert trace(lambda: torch.ones(4).to(dtype).to(torch.float32) * 2) is None
    saturates = dtype == torch.float8_e4m3fn
    values = torch.tensor([1.0, 3.0, NAN if saturates else 1e30])
    first, made = trace(lambda: values.to(dtype)), values.to(dtype).float()
    assert first.op == "aten::copy_" and first.produced_here == (not saturates)
    (output,) = first.outputs
    assert (output.num_inf, output.num_nan) == (int(made.isinf().sum()), int(made.isnan().sum())) and output.max == 3
    assert f"output  {str(dtype).removeprefix('torch.')} [3], finite values from 1 to 3" in str(first)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_float8_gradient_that_arrives_bad_is_seen_at_its_node(dtype):
    class Give(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.to(dtype)

        @staticmethod
        def backward(ctx, gradient):
            return gradient.float().nan_to_num(0, 0, 0)

    x = torch.ones(2, requires_grad=True)
    bad = torch.tensor([1.0, NAN]).to(dtype)
    first = trace(lambda: Give.apply(x).backward(bad))
    assert first.in_backward and not first.produced_here and first.op == "GiveBackward"
    with mezzo.FiniteTracer() as tracer:
        torch.zeros(1).log()
        assert not tracer.first.in_backward


def test_what_came_in_bad_is_said_to_be_received():
    for bad in (NAN, INF):
        x = torch.tensor([1.0, bad])
        first = trace(lambda: (x * 2).sum())
        assert first.op == "aten::mul.Tensor" and not first.produced_here
        assert "received inf or NaN, which no traced op had produced" in str(first)


def test_a_mask_does_not_hide_what_came_in_bad():
    weight = torch.tensor([1.0, NAN])
    first = trace(lambda: torch.ones(2).masked_fill(torch.tensor([True, False]), -INF).softmax(0) * weight)
    assert first.op == "aten::mul.Tensor" and not first.produced_here


@pytest.mark.parametrize("name", ["aten::log", "aten::log_"])
def test_ignored_ops_and_what_follows_them_are_passed_over(name):
    function = (lambda: (torch.zeros(2).log() + 1).abs() * 2) if name == "aten::log" else (lambda: -torch.zeros(2).log_())
    assert trace(function).op == name
    assert trace(function, ignore_ops=[name]) is None
    assert trace(lambda: (function(), torch.zeros(1) / 0), ignore_ops=[name]).op == "aten::div.Tensor"


class Root(torch.nn.Module):
    def forward(self, x):
        return x.sqrt()  # the gradient at 0 is inf


class Net(torch.nn.Module):
    """Modules named block, block.root and tail."""

    def __init__(self):
        super().__init__()
        self.block, self.tail = torch.nn.Module(), torch.nn.Flatten(0)
        self.block.root = Root()

    def forward(self, x):
        return self.tail(self.block.root(x) * 3).sum()


def test_backward_is_placed_by_its_forward_op_and_module():
    x, net = torch.tensor([0.0, 4.0], requires_grad=True), Net()
    with mezzo.FiniteTracer(net) as tracer:
        z = net(x)
        assert tracer.first is None
        z.backward()
    first = tracer.first
    assert first.in_backward and first.produced_here and first.op == "aten::div.Tensor"
    assert (first.backward_node, first.forward_op, first.module) == ("SqrtBackward0", "aten::sqrt", "block.root")
    assert "in backward, at SqrtBackward0, the gradient of aten::sqrt, in module block.root" in str(first)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_gradient_that_arrives_bad_is_seen_at_its_node():
    x = torch.ones(2, requires_grad=True)
    bad = torch.tensor([1.0, INF])
    first = trace(lambda: (x * 2).backward(bad))
    assert first.in_backward and not first.produced_here and first.op == "MulBackward0" and first.forward_op == "aten::mul.Tensor"


def test_what_the_engine_sums_for_a_broadcast_counts_as_backward():
    class Head(torch.nn.Module):
        def forward(self, bias):
            return bias + torch.ones(4)

    bias, net = torch.zeros(1, requires_grad=True), torch.nn.ModuleDict(dict(head=Head()))
    with mezzo.FiniteTracer(net) as tracer:
        net.head(bias).backward(torch.full((4,), 3e38))
        first = tracer.first
    assert first.op == "aten::sum.dim_IntList" and first.in_backward
    assert (first.backward_node, first.forward_op, first.module) == ("AddBackward0", "aten::add.Tensor", "head")


class Exact(TorchDispatchMode):
    """The first op below autograd with a non-finite result from finite inputs."""

    first = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        finite = all(bool(t.isfinite().all()) for t in flat if isinstance(t, torch.Tensor) and t.is_floating_point())
        out = func(*args, **(kwargs or {}))
        results = torch.utils._pytree.tree_leaves(out)
        bad = any(not bool(t.isfinite().all()) for t in results if isinstance(t, torch.Tensor) and t.is_floating_point())
        if self.first is None and finite and bad and "empty" not in str(func):
            self.first = "aten::" + func._schema.name.split("::")[1]
        return out


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_with_brute_force(seed):
    """A chain of ops of which some overflow, forward and backward."""
    def program():
        generator = torch.Generator().manual_seed(seed)
        pick = lambda n: int(torch.randint(n, (1,), generator=generator))
        x = (torch.randn(6, 6, generator=generator) * 10.0 ** pick(4)).requires_grad_()
        y = x
        for _ in range(6):
            step = pick(10)
            y = [lambda y: y * y, lambda y: y.exp(), lambda y: y @ x, lambda y: F.gelu(y), lambda y: y.abs().sqrt(),
                 lambda y: F.layer_norm(y, (6,)), lambda y: y.softmax(-1), lambda y: y / (y - y.round()),
                 lambda y: torch.cat([y, x])[:6], lambda y: y.abs().pow(0.25)][step](y)
        y.sum().backward()

    with Exact() as exact:
        program()
    found = trace(program)
    assert (found.op.split(".")[0] if found else None) == exact.first


def test_check_throws_and_what_was_found_first_stays():
    with mezzo.FiniteTracer() as tracer:
        tracer.check()
        torch.zeros(1).log()
        torch.zeros(1).sqrt() / 0
        with pytest.raises(RuntimeError, match="FiniteTracer: aten::log produced inf or NaN in forward"):
            tracer.check()
    assert tracer.first.op == "aten::log"


def test_the_innermost_scope_traces_and_threads_are_their_own():
    with mezzo.FiniteTracer() as outer:
        with mezzo.FiniteTracer() as inner:
            torch.zeros(1).log()
            assert inner.first.op == "aten::log"
        assert outer.first is None
        other = threading.Thread(target=lambda: torch.zeros(1).log())
        other.start()
        other.join()
        assert outer.first is None
        torch.ones(1) / 0
        assert outer.first.op == "aten::div.Tensor"
    torch.zeros(1).log()


def test_tracing_changes_no_number():
    def run():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(), torch.nn.GELU(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(5):
            with torch.autocast("cpu"):
                loss = model(torch.randn(4, 8)).float().logsumexp(1).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in model.parameters()] + [torch.rand(1)]

    plain = run()
    with mezzo.FiniteTracer():
        traced = run()
    assert all(map(torch.equal, plain, traced))
