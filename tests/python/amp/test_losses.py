"""Losses against PyTorch's float32 results: values, gradients, second gradients, extremes, and under autocast."""
import itertools

import _mezzo
import pytest
import torch
import torch.nn.functional as F

EXTREME = [-1e30, -1e4, -1.0, 0.0, 1e-30, 1.0, 1e4, 1e30]


def grads(loss, *inputs):
    return torch.autograd.grad(loss.sum(), inputs)


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_is_pytorchs_in_float32(dtype, reduction, weighted):
    torch.manual_seed(0)
    p = torch.cat([torch.rand(60), torch.tensor([0.0, 1.0, 0.0, 1.0])]).to(dtype).requires_grad_()
    target = torch.cat([torch.rand(60), torch.tensor([0.0, 0.0, 1.0, 1.0])]).to(dtype)
    weight = torch.rand(64) if weighted else None
    ours = _mezzo.binary_cross_entropy(p, target, weight, reduction)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    theirs = F.binary_cross_entropy(p.to(work), target.to(work), None if weight is None else weight.to(work), reduction=reduction)
    assert ours.dtype == work and ours.isfinite().all()
    same(ours, theirs)
    (gradient,) = grads(ours, p)
    same(gradient, grads(theirs, p)[0])
    assert dtype == torch.float16 or gradient.isfinite().all(), "1e12 fits all but float16"


def test_binary_cross_entropy_takes_labels_as_integers():
    p = torch.rand(8)
    labels = torch.randint(0, 2, (8,))
    same(_mezzo.binary_cross_entropy(p, labels), F.binary_cross_entropy(p, labels.float()))


def test_the_losses_run_in_float32_under_autocast():
    p = torch.rand(8).bfloat16()
    logits = torch.randn(8, 3).bfloat16()
    labels = torch.randint(0, 3, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for loss in (_mezzo.binary_cross_entropy(p, p), _mezzo.clamped_log(p), _mezzo.cross_entropy(logits, labels)):
            assert loss.dtype == torch.float32
        assert (torch.randn(2, 2) @ torch.randn(2, 2)).dtype == torch.bfloat16, "autocast goes on afterwards"


def test_second_gradients_are_right():
    torch.manual_seed(0)
    p = (0.05 + 0.9 * torch.rand(6, dtype=torch.float64)).requires_grad_()
    target = torch.rand(6, dtype=torch.float64)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, -100])
    check = torch.autograd.gradgradcheck
    assert check(lambda p: _mezzo.binary_cross_entropy(p, target), p)
    assert check(_mezzo.clamped_log, p)
    assert check(lambda logits: _mezzo.cross_entropy(logits, labels, label_smoothing=0.1), logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_clamped_log_is_the_log_above_its_floor_and_flat_below(dtype):
    x = torch.tensor([-1.0, 0.0, 1e-30, 1e-12, 1e-3, 0.5, 1.0, 6e4]).to(dtype).requires_grad_()
    y = _mezzo.clamped_log(x)
    work = torch.float64 if dtype == torch.float64 else torch.float32
    exact = x.to(work).clamp_min(1e-12)
    same(y.detach(), exact.detach().log())
    (gradient,) = grads(y, x)
    # At the floor itself, clamp passes the gradient on up to torch 2.14, and not from 2.15 on.
    same(gradient, grads(exact.log(), x)[0])
    assert (gradient[:2] == 0).all() and (gradient[4:] == (1 / x.detach().to(work)[4:]).to(dtype)).all()


def test_clamped_log_keeps_nan_and_differs_from_a_clamped_logarithm_at_zero():
    assert _mezzo.clamped_log(torch.tensor(float("nan"))).isnan()
    x = torch.zeros(1, requires_grad=True)
    assert grads(x.log().clamp_min(-100), x)[0].isnan().all()
    assert grads(_mezzo.clamped_log(x), x)[0] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("reduction, smoothing, weighted, probabilities",
                         list(itertools.product(["none", "mean", "sum"], [0.0, 0.2], [False, True], [False, True])))
def test_cross_entropy_is_pytorchs_in_float32(dtype, reduction, smoothing, weighted, probabilities):
    torch.manual_seed(1)
    logits = (10 * torch.randn(32, 5, 2)).to(dtype).requires_grad_()
    weight = torch.rand(5) if weighted else None
    target = torch.randn(32, 5, 2).softmax(1).to(dtype) if probabilities else torch.randint(0, 5, (32, 2))
    if not probabilities:
        target[::7] = 3
    ignore = -100 if probabilities else 3
    work = torch.float64 if dtype == torch.float64 else torch.float32
    ours = _mezzo.cross_entropy(logits, target, weight, reduction, ignore, smoothing)
    theirs = F.cross_entropy(logits.to(work), target.to(work) if probabilities else target,
                             None if weight is None else weight.to(work), reduction=reduction, ignore_index=ignore,
                             label_smoothing=smoothing)
    same(ours, theirs)
    same(grads(ours, logits), grads(theirs, logits))


def test_cross_entropy_stays_finite_for_the_logits_that_float16_and_bfloat16_can_hold():
    for dtype, values in ((torch.float16, [-65504.0, -1.0, 0.0, 65504.0]), (torch.bfloat16, EXTREME)):
        logits = torch.tensor(list(itertools.product(values, repeat=2)), dtype=dtype, requires_grad=True)
        loss = _mezzo.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="none")
        assert loss.isfinite().all() and grads(loss, logits)[0].isfinite().all()


@pytest.mark.parametrize("call, message", [
    (lambda: _mezzo.binary_cross_entropy(torch.rand(2), torch.rand(3)), "target must have the shape"),
    (lambda: _mezzo.binary_cross_entropy(torch.ones(2).long(), torch.rand(2)), "probabilities must be a floating tensor, got Long"),
    (lambda: _mezzo.clamped_log(torch.ones(2), 0), "floor must be between"),
    (lambda: _mezzo.clamped_log(torch.ones(2), float("nan")), "floor must be between"),
    (lambda: _mezzo.cross_entropy(torch.ones(2, 2).long(), torch.zeros(2).long()), "logits must be a floating tensor"),
])
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
