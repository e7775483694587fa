"""AutocastGuard against torch.autocast: the same thread-local state, in any nesting of the two."""
import random

import _mezzo
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
    for _ in range(rng.randint(1, 6)):
        yield dict(
            device_type=device,
            dtype=rng.choice([torch.float16, torch.bfloat16]),
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
def test_any_nesting_of_cpp_and_python_regions_sets_what_python_alone_sets(seed, device):
    rng = random.Random(seed)
    regions = list(random_regions(rng, device))
    fail = rng.random() < 0.3
    expected = trace(regions, [torch.autocast] * len(regions), fail, device)
    mixed = [rng.choice([torch.autocast, _mezzo.autocast]) for _ in regions]
    assert trace(regions, [_mezzo.autocast] * len(regions), fail, device) == expected
    assert trace(regions, mixed, fail, device) == expected
    assert expected[0] == expected[-1]
