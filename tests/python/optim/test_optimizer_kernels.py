"""The optimizers' kernels: against their reference, PyTorch's rounding, and themselves with other numbers of threads."""
import copy
import random

import _mezzo
import mezzo
import pytest
import torch
from optimizers import make

HALVES = [torch.float16, torch.bfloat16]


def kernel_case(rng, generator, param_dtype, gradient_dtype, half_dtype, momentum):
    params, gradients, steps, slots, half_copies = [], [], [], [], []
    for size in [1, 7, 1024, 70_000, rng.randint(1, 3000)]:  # a chunk has 65536 elements, a block 1024
        params.append(torch.randn(size, generator=generator).to(param_dtype))
        gradients.append((torch.randn(size, generator=generator) * 8).to(gradient_dtype))
        steps.append(torch.tensor(float(rng.randint(0, 50))))
        slots.append([torch.rand(size, generator=generator) for _ in range(momentum)])
        half_copies.append(params[-1].to(half_dtype) if half_dtype and param_dtype == torch.float32 else None)
    return params, gradients, steps, slots, half_copies


def clones(case):
    params, gradients, steps, slots, half_copies = case
    copy = lambda tensors: [t if t is None else t.clone() for t in tensors]
    return copy(params), copy(gradients), copy(steps), [copy(s) for s in slots], copy(half_copies)


@pytest.mark.parametrize("kind, momentum", [("adamw", 0), ("adam", 0), ("adamw amsgrad", 0), ("sgd", 0.9), ("sgd", 0), ("lamb", 0)])
@pytest.mark.parametrize("param_dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("gradient_dtype", [torch.float32, *HALVES])
def test_kernels_agree_with_their_reference(kind, momentum, param_dtype, gradient_dtype):
    """Any mix of dtypes, scaled, clipped, rounded stochastically; LAMB sums its norms in another order."""
    rng = random.Random(0)
    generator = torch.Generator().manual_seed(0)
    moments = {"sgd": 1 if momentum else 0, "adamw amsgrad": 3}.get(kind, 2)
    for half_dtype in [None, *HALVES]:
        case = kernel_case(rng, generator, param_dtype, gradient_dtype, half_dtype, moments)
        other, before = clones(case), clones(case)
        seed = 11 if param_dtype == torch.bfloat16 and half_dtype is None else None
        settings = (0.01, 0.1, momentum, torch.tensor(0.125), torch.tensor(0.7), torch.tensor(0.0), seed)
        _mezzo.kernel_step(kind, False, *case, *settings)
        _mezzo.kernel_step(kind, True, *other, *settings)
        ulp = torch.finfo(param_dtype).eps
        for i in range(len(case[0])):
            assert torch.equal(case[1][i], before[1][i]), "gradients are read only"
            assert torch.equal(case[2][i], other[2][i])
            for mine, theirs in zip(case[3][i], other[3][i]):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)  # a few roundings of float32
            # At most a few ulp of float32, which may tip the rounding to half by one ulp of that.
            torch.testing.assert_close(case[0][i].float(), other[0][i].float(), rtol=max(ulp, 1e-6), atol=1e-6)
            assert (case[0][i] != other[0][i]).float().mean() < 0.05 or param_dtype == torch.float32
            if case[4][i] is not None:
                assert torch.equal(case[4][i], case[0][i].to(half_dtype)), "the half copy is the rounded parameter"
        skipped = clones(before)
        _mezzo.kernel_step(kind, False, *skipped, *settings[:5], torch.tensor(1.0), seed)
        for mine, theirs in zip(skipped[0] + skipped[2] + sum(skipped[3], []), before[0] + before[2] + sum(before[3], [])):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_copies_are_rounded_as_pytorch_rounds(dtype):
    """Every half number, what lies halfway to the next, and float32's neighbours of that."""
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    halfway = (halves[:-1] + halves[1:]) / 2
    bits = halfway.view(torch.int32)
    values = torch.cat([halves, halfway, (bits + 1).view(torch.float32), (bits - 1).view(torch.float32)])
    weight, half_copy = values.clone().requires_grad_(), torch.zeros_like(values, dtype=dtype)
    weight.grad = torch.zeros_like(values)
    weight.half_copy = half_copy
    mezzo.optim.SGD([weight], lr=0.0).step()
    number = ~values.isnan()
    assert torch.equal(half_copy[number], values.to(dtype)[number])
    assert half_copy[~number].isnan().all()


@pytest.mark.parametrize("kind, momentum", [("adamw", 0), ("sgd", 0.9), ("lamb", 0)])
@pytest.mark.parametrize("seed", [None, 3])
def test_results_do_not_depend_on_the_number_of_threads(kind, momentum, seed):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(300_001, generator=generator).bfloat16()
    gradients = torch.randn(5, 300_001, generator=generator)
    results = []
    threads = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        weight = start.clone().requires_grad_()
        optimizer = make(kind, [weight], 0.1, 0.01, momentum, max_grad_norm=3.0, stochastic_rounding_seed=seed)
        norms = []
        for gradient in gradients:
            weight.grad = gradient.bfloat16()
            optimizer.step()
            norms.append(optimizer.grad_norm.item())
        results.append((weight.detach(), norms))
    torch.set_num_threads(threads)
    for weight, norms in results[1:]:
        assert torch.equal(weight, results[0][0]) and norms == results[0][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("special", [None, float("inf"), float("-inf"), float("nan")])
def test_one_reading_finds_the_norm_and_what_is_not_finite(dtype, special):
    generator = torch.Generator().manual_seed(0)
    for sizes in [(1,), (15, 17), (3, 70_001, 4)]:
        gradients = [torch.randn(s, generator=generator).to(dtype) * 100 for s in sizes]
        if special is not None:
            gradients[-1][-1] = special
        scale, inv_scale = torch.tensor(3.0), torch.tensor(1 / 3)
        for summarize in (_mezzo.summarize_gradients, _mezzo.reference_summarize_gradients):
            norm, found_inf, inverse, clip = summarize(gradients, scale, max_norm=0.5)
            exact = torch.cat(gradients).double().norm() * inv_scale.double()
            assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert found_inf == (special is not None)
            torch.testing.assert_close(norm.double(), exact, rtol=2**-23, atol=0, equal_nan=True)
            assert inverse == inv_scale
            expected = torch.clamp(0.5 / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_
            assert torch.equal(clip.view(1).view(torch.int32), expected.view(1).view(torch.int32)) or clip.isnan() and expected.isnan()


def test_large_gradients_have_a_norm_and_those_that_overflow_when_unscaled_are_found():
    huge = torch.full((4,), 1e30)  # whose square is beyond float32
    norm, found_inf, _, _ = _mezzo.summarize_gradients([huge], None)
    assert norm.item() == pytest.approx(2e30) and found_inf == 0
    assert _mezzo.summarize_gradients([huge], torch.tensor(1e-10))[1] == 1


def test_infinitely_many_tries_of_stochastic_rounding_are_unbiased_and_reproducible():
    """The mean of n draws has a deviation of half an ulp / sqrt(n) at most; five of those."""
    n = 1 << 18
    for value in [1.0 + 2**-9, 1.0 + 2**-12, -3.1416, 1e-3]:
        values = torch.full((n,), value)
        one = _mezzo.reference_round_stochastically(values, torch.tensor(1.0), 5, 0)
        ulp = 2.0 ** (torch.tensor(abs(value)).log2().floor().item() - 7)
        assert abs(one.double().mean().item() - values[0].double().item()) < 5 * ulp / 2 / n**0.5
        assert ((one.float() - values).abs() < ulp).all()
        assert torch.equal(one, _mezzo.reference_round_stochastically(values, torch.tensor(1.0), 5, 0))
        for step, seed, site in [(2.0, 5, 0), (1.0, 6, 0), (1.0, 5, 1)]:
            assert not torch.equal(one, _mezzo.reference_round_stochastically(values, torch.tensor(step), seed, site))
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.5])
    out = _mezzo.reference_round_stochastically(special, torch.tensor(1.0), 5, 0)
    torch.testing.assert_close(out.float(), special, rtol=0, atol=0, equal_nan=True)


def test_updates_too_small_for_bfloat16_add_up_when_rounded_stochastically():
    results = {}
    for seed in (None, 0, 1):
        weight = torch.ones(10_000, dtype=torch.bfloat16).requires_grad_()
        sgd = mezzo.optim.SGD([weight], lr=1e-4, stochastic_rounding_seed=seed)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            sgd.step()
        results[seed] = weight.detach()
    assert (results[None] == 1).all()
    for seed in (0, 1):  # each step's rounding has a deviation below 2^-8 / 2: five of those, over 10^6 draws
        assert results[seed].double().mean().item() == pytest.approx(0.99, abs=5 * 100**0.5 * 2**-9 / 10_000**0.5)
    assert not torch.equal(results[0], results[1])


@pytest.mark.parametrize("kind", ["adamw", "sgd", "lamb"])
def test_stochastic_rounding_resumes_to_the_bit(kind):
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(8, 500, generator=generator).bfloat16()
    make_one = lambda weight: make(kind, [weight], 0.1, 1e-3, 0.9, stochastic_rounding_seed=9)

    def steps(optimizer, weight, some):
        for gradient in some:
            weight.grad = gradient.clone()
            optimizer.step()

    whole = torch.ones(500, dtype=torch.bfloat16).requires_grad_()
    steps(make_one(whole), whole, gradients)
    first = torch.ones(500, dtype=torch.bfloat16).requires_grad_()
    one = make_one(first)
    steps(one, first, gradients[:3])
    second = first.detach().clone().requires_grad_()
    other = make_one(second)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    steps(other, second, gradients[3:])
    assert torch.equal(whole, second)


def test_float16_parameters_are_not_rounded_stochastically():
    weight = torch.ones(2, dtype=torch.float16).requires_grad_()
    with pytest.raises(ValueError, match="AdamW: float16 is not rounded stochastically"):
        mezzo.optim.AdamW([weight], stochastic_rounding_seed=1)


def is_denormal(tensor):
    return (tensor != 0) & (tensor.abs() < torch.finfo(torch.float32).tiny)


@pytest.mark.parametrize("kind, momentum", [("adamw", 0), ("adam", 0), ("sgd", 0.9)])
@pytest.mark.parametrize("by_reference", [False, True])
def test_moments_of_rows_no_longer_seen_end_in_zero_and_weights_stay_as_they_were(kind, momentum, by_reference):
    """Half of a table is looked up once, the other half in every step. PyTorch keeps the denormals."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(16, 8, generator=generator)
    moments = 1 if kind == "sgd" else 2
    mine, theirs = start.clone(), start.clone().requires_grad_()
    slots, count = [torch.zeros_like(mine) for _ in range(moments)], torch.tensor(0.0)
    oracle = {"sgd": lambda: torch.optim.SGD([theirs], lr=0.01, momentum=momentum, fused=True),
              "adam": lambda: torch.optim.Adam([theirs], lr=0.01, fused=True),
              "adamw": lambda: torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.0, fused=True)}[kind]()
    seen_denormals = 0
    for step in range(1200):
        gradient = torch.randn(16, 8, generator=generator)
        gradient[8:] *= 1e-18 if step == 0 else 0.0  # whose square is denormal at once, and 1e-18 * 0.9^400 later
        _mezzo.kernel_step(kind, by_reference, [mine], [gradient], [count], [slots], [None], 0.01, 0.0, momentum)
        theirs.grad = gradient
        oracle.step()
        state = oracle.state[theirs]
        for slot, name in zip(slots, ["momentum_buffer"] if kind == "sgd" else ["exp_avg", "exp_avg_sq"]):
            assert not is_denormal(slot).any(), (step, name)
            denormal = is_denormal(state[name])
            assert torch.equal(slot[~denormal], state[name][~denormal]) and (slot[denormal] == 0).all(), (step, name)
            seen_denormals += denormal.sum().item()
        assert torch.equal(mine, theirs), step
    assert seen_denormals > 1000 and (slots[0][8:] == 0).all()  # else the test shows nothing


@pytest.mark.parametrize("by_reference", [False, True])
def test_moments_that_are_not_flushed(by_reference):
    """By a step that is skipped; where eps is 0, so that a root of 0 would divide by 0; NaN."""
    def moments_after(value, **arguments):
        slots = [torch.full((17,), value), torch.full((17,), value)]
        _mezzo.kernel_step("adamw", by_reference, [torch.ones(17)], [torch.zeros(17)], [torch.tensor(5.0)], [slots], [None],
                           0.01, 0.0, 0.0, **arguments)
        return torch.cat(slots)

    assert (moments_after(1e-40) == 0).all() and (moments_after(-1e-40) == 0).all()
    assert (moments_after(1e-40, found_inf=torch.tensor(1.0)) == 1e-40).all()
    assert is_denormal(moments_after(1e-40, eps=0.0)).all()
    assert moments_after(float("nan")).isnan().all()
