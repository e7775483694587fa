"""custom_fwd and custom_bwd of C++ against torch.amp's: the same autocast state and dtypes inside, the same results."""
import contextlib
import itertools
import warnings

import _mezzo
import pytest
import torch
from torch.amp import custom_bwd, custom_fwd


def python_function(cast_inputs, sights):
    def look(argument, product):
        sights.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), argument.dtype, product.dtype))

    class Matmul(torch.autograd.Function):
        @staticmethod
        @custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            product = a.mm(b)
            look(a, product)
            return product

        @staticmethod
        @custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            grads = grad.mm(b.t()), a.t().mm(grad)
            look(grad, grads[0])
            return grads

    return Matmul.apply


def run(function, region, dtypes, double):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, 3, generator=generator).to(d).requires_grad_() for d in dtypes)
    c = torch.randn(3, 3, generator=generator)
    try:
        with region():
            product = function(a, b)
        if not double:
            return [product, *torch.autograd.grad(product.float().mul(c).sum(), (a, b))]
        first = torch.autograd.grad(product.float().square().sum(), (a, b), create_graph=True)
        return [product, *first, *torch.autograd.grad(sum(g.float().square().sum() for g in first), (a, b))]
    except RuntimeError:
        return "error"


@contextlib.contextmanager
def float32_region():
    """As `torch.autocast("cpu", torch.float32)` sets it, which warns and switches autocast off."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cpu", torch.float32):
            assert torch.get_autocast_dtype("cpu") == torch.float32
            yield


REGIONS = {
    "fp32": float32_region,
    "none": lambda: torch.autocast("cpu", enabled=False),
    "bf16": lambda: torch.autocast("cpu", torch.bfloat16),
    "fp16": lambda: torch.autocast("cpu", torch.float16),
}


@pytest.mark.parametrize("cast_inputs", [None, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("double", [False, True])
def test_forward_and_backward_see_the_state_and_dtypes_that_pytorchs_see(cast_inputs, region, double):
    compared = 0
    for dtypes in itertools.product((torch.float32, torch.bfloat16, torch.float16, torch.float64), repeat=2):
        sights = []
        expected = run(python_function(cast_inputs, sights), REGIONS[region], dtypes, double)
        got = run(lambda a, b: _mezzo.custom_mm(a, b, cast_inputs), REGIONS[region], dtypes, double)
        if expected != "error":
            assert _mezzo.custom_mm_sights() == sights, dtypes
            compared += 1
        else:
            _mezzo.custom_mm_sights()
        assert (got == "error") == (expected == "error"), dtypes
        if expected != "error":
            assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, expected, strict=True)), dtypes
    assert compared >= 4
