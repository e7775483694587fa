"""mezzo.autocast against torch.autocast: the same thread-local state, in any nesting of the two."""
import random

import mezzo
import pytest
import torch
from devices import DEVICES


def state():
    return {
        "cpu": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "cuda": (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")),
        "cache": torch.is_autocast_cache_enabled(),
    }


def random_regions(rng, device):
    dtypes = rng.choice([[torch.float16], [torch.bfloat16], [torch.float16, torch.bfloat16]])
    for _ in range(rng.randint(1, 6)):
        yield dict(
            device_type=device,
            dtype=rng.choice(dtypes),
            enabled=rng.random() < 0.7,
            cache_enabled=rng.choice([None, True, False]),
        )


def trace(regions, kinds, fail, device):
    """Enters the regions one in another with the given kind of guard; returns the states and result dtypes seen."""
    seen = [state()]
    x = torch.ones(2, 2, device=device)

    def inner(rest):
        if not rest:
            seen.append((state(), (x @ x).dtype, torch.nn.functional.mse_loss(x @ x, x @ x).dtype))
            if fail:
                raise KeyError("leaves every region")
            return
        (region, kind), *rest = rest
        with kind(**region):
            seen.append(state())
            inner(rest)
            seen.append(state())

    try:
        inner(list(zip(regions, kinds)))
    except KeyError:
        pass
    seen.append(state())
    return seen


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(300))
def test_any_nesting_of_mezzos_and_pytorchs_regions_sets_what_pytorchs_alone_set(seed, device):
    rng = random.Random(seed)
    regions = list(random_regions(rng, device))
    fail = rng.random() < 0.3
    mixed = [rng.choice([torch.autocast, mezzo.autocast]) for _ in regions]
    expected = trace(regions, [torch.autocast] * len(regions), fail, device)
    assert expected[0] == expected[-1]
    # A guard inside a region of another dtype keeps no casts. Otherwise Python's guard would get casts of
    # the other dtype.
    has_one_dtype = len({region["dtype"] for region in regions}) == 1
    for kinds in ([mezzo.autocast] * len(regions), mixed):
        found = trace(regions, kinds, fail, device)
        assert found == expected if has_one_dtype else without_cache(found) == without_cache(expected)
        assert found[0] == found[-1]


def without_cache(seen):
    return [{key: value for key, value in each.items() if key != "cache"} if isinstance(each, dict) else each[1:] for each in seen]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(100))
def test_a_weight_is_cast_to_the_dtype_of_its_region_in_any_nesting(seed, device):
    weight = torch.ones(2, 2, device=device, requires_grad=True)
    regions = list(random_regions(random.Random(seed), device))

    def check(rest, expected):
        assert (weight @ weight).dtype == expected
        for region in rest[:1]:
            with mezzo.autocast(**region):
                check(rest[1:], region["dtype"] if region["enabled"] else torch.float32)
            assert (weight @ weight).dtype == expected

    check(regions, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        check(regions, torch.bfloat16)
