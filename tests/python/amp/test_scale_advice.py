"""Histograms of gradient exponents against NumPy, and what float16 loses against casting to it."""
import mezzo
import numpy as np
import pytest
import torch

LOWEST, HIGHEST = -149, 127


def advise(*groups, scale=1.0, unscaled=True):
    return mezzo.advise_scale({f"g{i}": list(group) for i, group in enumerate(groups)}, scale, unscaled=unscaled)


def count(*groups, **options):
    return advise(*groups, **options).groups


def numpy_counts(values):
    magnitude = np.abs(values[np.isfinite(values) & (values != 0)].astype(np.float64))
    exponents = np.frexp(magnitude)[1] - 1
    return np.bincount(exponents - LOWEST, minlength=HIGHEST - LOWEST + 1)


def spread(n, low, high, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.choice([-1, 1], n) * np.exp2(rng.uniform(low, high, n))).astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_counts_are_numpys(dtype):
    special = torch.tensor([0.0, -0.0, 2.0**-149, 2.0**-126, 1.0, 2.0**100, 3e38, float("inf"), -float("inf"), float("nan")])
    values = torch.cat([spread(20000, -148, 127), special]).to(dtype)
    (exponents,) = count([values.reshape(2, -1)])
    as_float = values.float().numpy()
    assert exponents.counts == numpy_counts(as_float).tolist()
    assert exponents.zeros == (as_float == 0).sum()
    assert exponents.non_finite == (~np.isfinite(as_float)).sum()
    assert exponents.largest == np.abs(as_float[np.isfinite(as_float)]).max()


def test_a_group_counts_all_its_tensors_strided_and_sparse_ones_too():
    a, b = spread(300, -30, 3).reshape(20, 15), spread(7, -60, 10, seed=1)
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 4, 1]]), torch.tensor([1.0, 2.0, 3.0]), (9,))
    together, alone, none = count([a.t(), b, sparse], [a[::2, 1::3]], [])
    expected = numpy_counts(np.concatenate([a.numpy().ravel(), b.numpy(), [4.0, 2.0]]))
    assert together.counts == expected.tolist() and together.largest == max(a.abs().max(), b.abs().max(), 4)
    assert alone.counts == numpy_counts(a[::2, 1::3].numpy().ravel()).tolist()
    assert sum(none.counts) == 0 and none.lost == 0 and none.headroom == float("inf")


@pytest.mark.parametrize("scale", [1.0, 2.0**-7, 8.0, 65536.0, 2.0**24])
def test_shares_are_what_a_cast_to_float16_leaves(scale):
    values = spread(50000, -60, 8)
    (exponents,) = count([values], scale=scale)
    cast = (values * scale).to(torch.float16)
    normal = 2.0**-14
    assert exponents.lost == (cast == 0).double().mean().item()
    # Before rounding: the cast takes what lies within half a step of the
    # least normal number up to it.
    below = ((values * scale).abs() < normal) & (cast != 0)
    assert exponents.subnormal == below.double().mean().item()
    assert exponents.headroom == pytest.approx(np.log2(65504 / (values.abs().max().item() * scale)), abs=1e-6)


def test_scaled_gradients_are_unscaled_first():
    values = spread(5000, -30, 3)
    (plain,), (scaled,) = count([values]), count([values * 65536], scale=65536, unscaled=False)
    assert plain.counts == scaled.counts and plain.largest == scaled.largest


@pytest.mark.parametrize("low, high", [(-60, -20), (-40, 0), (-10, 10), (-3, 20), (-80, -70)])
def test_the_recommended_scale_leaves_two_doublings_and_no_more_than_three(low, high):
    values = spread(5000, low, high)
    advice = advise([values], [values / 3], scale=65536.0)
    largest = values.abs().max().item() * advice.recommended_scale
    assert advice.recommended_scale == 2 ** round(np.log2(advice.recommended_scale))
    if advice.recommended_scale < 2**24:
        assert 65504 / 8 < largest <= 65504 / 4
    lost = (values.half() == 0).double().mean().item()
    assert advice.needs_scale == ((values / 3).half().eq(0).double().mean().item() > 1e-3 or lost > 1e-3)


def test_advice_without_gradients_keeps_the_scale():
    advice = advise([], scale=1024.0)
    assert advice.recommended_scale == 1024 and not advice.needs_scale
    assert "scale 1024; recommended for float16: 1024 (these gradients need almost no scale)" in str(advice)


def test_zeros_alone_are_no_sign_that_no_scale_is_needed():
    for groups in [[torch.zeros(3)]], [[torch.ones(3)], [torch.zeros(3)]]:
        advice = advise(*groups, scale=1e-4)
        assert "hardly need one" not in str(advice)
        assert f"all gradients are 0 of g{len(groups) - 1}: the scale may be too small for them" in str(advice)


def test_a_scale_that_does_not_suit_the_gradients_is_objected_to():
    values = spread(5000, -20, 0)
    objections = {scale: advise([values], scale=scale).objection for scale in (1e-4, 4096.0, 1e12)}
    lost = (values * 2.0**-14).half().eq(0).double().mean().item()  # 1e-4, rounded down to a power of two
    assert objections[1e-4] == f"the scale is too small for float16: of gradients that are not 0, it loses {100 * lost:.2f} % of g0"
    assert objections[4096.0] == ""
    assert objections[1e12] == "the scale is too large for float16: the largest scaled gradient exceeds 65504"


def test_a_bin_above_what_float32_can_count():
    big = torch.full((2**24 + 3,), 1.5)
    (exponents,) = count([big])
    assert exponents.counts[0 - LOWEST] == 2**24 + 3


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_useless_scale_is_refused(scale):
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        count([torch.ones(1)], scale=scale, unscaled=False)
