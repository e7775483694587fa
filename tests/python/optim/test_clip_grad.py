"""clip_grad_norm_ and clip_grad_value_ against torch.nn.utils."""
import random

import _mezzo
import pytest
import torch


def parameters_with_gradients(seed, dtypes):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for _ in range(rng.randint(0, 6)):
        shape = [rng.randint(0, 40) for _ in range(rng.randint(0, 3))]
        dtype = rng.choice(dtypes)
        parameter = torch.zeros(shape, dtype=dtype, requires_grad=True)
        if rng.random() < 0.8:
            parameter.grad = (torch.randn(shape, generator=generator) * 10 ** rng.uniform(-3, 2)).to(dtype)
            if rng.random() < 0.05 and parameter.numel():
                parameter.grad.view(-1)[0] = rng.choice([float("inf"), float("nan")])
        parameters.append(parameter)
    return parameters, rng.choice([0.0, 1e-3, 1.0, 50.0, float("inf")])


def compare(seed, dtypes, rtol, norm_type=2.0):
    ours, max_norm = parameters_with_gradients(seed, dtypes)
    theirs, _ = parameters_with_gradients(seed, dtypes)
    norm = _mezzo.clip_grad_norm_(ours, max_norm, norm_type)
    # PyTorch refuses the largest magnitude of no elements; a gradient without any changes no norm.
    with_elements = [t for t in theirs if norm_type != float("inf") or t.numel()]
    expected = torch.nn.utils.clip_grad_norm_(with_elements, max_norm, norm_type)
    torch.testing.assert_close(norm, expected, rtol=rtol, atol=0, equal_nan=True, check_dtype=rtol == 0)
    for our, their in zip(ours, theirs):
        assert (our.grad is None) == (their.grad is None)
        if our.grad is not None:
            torch.testing.assert_close(our.grad, their.grad, rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norm_and_gradients_are_bit_equal_for_one_full_precision_dtype(dtype):
    for seed in range(300):
        compare(seed, [dtype], rtol=0)


def test_half_and_mixed_gradients_agree_within_the_rounding_that_float32_accumulation_spares():
    # PyTorch rounds each half gradient's norm to half: eps(bfloat16), once for the norm
    # and once for the product.
    for seed in range(300):
        compare(seed, [torch.float32, torch.bfloat16, torch.float64], rtol=2 * torch.finfo(torch.bfloat16).eps)


@pytest.mark.parametrize("norm_type", [1.0, 3.0, 0.5, float("inf")])
def test_other_norms_are_bit_equal_for_float32(norm_type):
    for seed in range(100):
        compare(seed, [torch.float32], 0, norm_type)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_clipped_values_are_pytorchs(dtype):
    for seed in range(100):
        ours, limit = parameters_with_gradients(seed, [dtype])
        theirs, _ = parameters_with_gradients(seed, [dtype])
        _mezzo.clip_grad_value_(ours, limit)
        if any(their.grad is not None for their in theirs):  # without any, PyTorch fails
            torch.nn.utils.clip_grad_value_(theirs, limit)
        for our, their in zip(ours, theirs):
            assert (our.grad is None) == (their.grad is None)
            if our.grad is not None:
                torch.testing.assert_close(our.grad, their.grad, rtol=0, atol=0, equal_nan=True)


def test_values_and_norms_that_mean_nothing_are_refused():
    parameter = torch.zeros(2, requires_grad=True)
    parameter.grad = torch.tensor([3.0, -4.0])
    for call in (lambda: _mezzo.clip_grad_value_([parameter], -1.0), lambda: _mezzo.clip_grad_value_([parameter], float("nan")),
                 lambda: _mezzo.clip_grad_norm_([parameter], 1.0, 0.0), lambda: _mezzo.clip_grad_norm_([parameter], 1.0, float("nan"))):
        with pytest.raises(ValueError):
            call()
    assert parameter.grad.tolist() == [3.0, -4.0]
