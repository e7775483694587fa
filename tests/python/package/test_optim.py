"""mezzo.optim in PyTorch's own tests: torch.testing's optimizers, options, errors and schedules; states, copies and pickles."""
import copy
import io
import pickle
import subprocess
import sys
import warnings

import mezzo
import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

INFOS = {info.optim_cls.__name__: info for info in optim_db if info.optim_cls.__name__ in ("Adam", "AdamW", "SGD", "Muon")}
CASES = [(name, option) for name, info in INFOS.items() for option in info.optim_inputs_func(device="cpu", dtype=torch.float32)]
IDS = [f"{name} {option.desc}" for name, option in CASES]


def pair(name, kwargs, dtype=torch.float32, **of_mezzo):
    """Equal matrices, and one optimizer of each package over them."""
    generator = torch.Generator().manual_seed(0)
    theirs = [torch.randn(8, 16, generator=generator).to(dtype).requires_grad_() for _ in range(3)]
    mine = [t.detach().clone().requires_grad_() for t in theirs]
    fused = {} if name == "Muon" else dict(fused=True)
    kwargs = {key: value for key, value in kwargs.items() if key != "capturable"}  # the fused kernels always are
    return (mine, getattr(mezzo.optim, name)(mine, **copy.deepcopy(kwargs), **of_mezzo),
            theirs, getattr(torch.optim, name)(theirs, **copy.deepcopy(kwargs), **fused))


def give_gradients(generator, *lists, scale=1.0):
    for tensors in zip(*lists):
        gradient = torch.randn(tensors[0].shape, generator=generator) * scale
        for tensor in tensors:
            tensor.grad = gradient.to(tensor.dtype)


def assert_equal(name, mine, theirs):
    """Bits; Muon's products may add in another order."""
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b) if name != "Muon" else torch.allclose(a, b, rtol=2**-20, atol=2**-20)


@pytest.mark.parametrize("name, option", CASES, ids=IDS)
def test_pytorchs_options_give_pytorchs_numbers(name, option):
    mine, ours, theirs, oracle = pair(name, option.kwargs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(7):
        give_gradients(generator, mine, theirs)
        ours.step()
        oracle.step()
        assert_equal(name, mine, theirs)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_pytorchs_switches_of_implementations_change_nothing(name):
    for switches in (dict(fused=True), dict(foreach=True), dict(foreach=None, fused=False, differentiable=False)):
        mine, ours, theirs, oracle = pair(name, dict(lr=0.01), **switches)
        give_gradients(torch.Generator().manual_seed(1), mine, theirs)
        ours.step()
        oracle.step()
        assert_equal(name, mine, theirs)
    for switch in ("differentiable",) if name == "SGD" else ("capturable", "differentiable"):
        with pytest.raises(ValueError, match=f"^{name} does not support {switch}=True; leave it out, or use torch.optim.{name}$"):
            getattr(mezzo.optim, name)(mine, **{switch: True})


@pytest.mark.parametrize("name", INFOS)
def test_pytorchs_errors_are_raised(name):
    """Except complex parameters, which are refused at once, and switches of implementations."""
    ours, seen = getattr(mezzo.optim, name), 0
    for error in INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = error.optimizer_error_input
        if "foreach" in given.kwargs or "complex" in given.desc:
            continue
        params = given.params if given.params is not None else [torch.randn(2, 3, requires_grad=True)]
        with pytest.raises(error.error_type, match=error.error_regex), warnings.catch_warnings():
            warnings.simplefilter("error")
            if error.error_on == OptimizerErrorEnum.CONSTRUCTION_ERROR:
                ours(params, **given.kwargs)
            else:
                ours(params, **given.kwargs).step()
        seen += 1
    assert seen > 5


@pytest.mark.parametrize("name", INFOS)
def test_pytorchs_schedules_and_closures_set_the_same_rates(name):
    for schedulers in INFOS[name].scheduler_inputs:
        for rate in (0.01, torch.tensor(0.01)):
            mine, ours, theirs, oracle = pair(name, dict(lr=rate))
            schedules = [[make(optimizer) for make in schedulers] for optimizer in (ours, oracle)]
            for step in range(12):
                losses = []
                for params, optimizer in ((mine, ours), (theirs, oracle)):
                    def closure():
                        optimizer.zero_grad()  # noqa: B023 – runs at once
                        loss = sum((p * p).sum() for p in params)  # noqa: B023
                        loss.backward()
                        return loss
                    losses.append(optimizer.step(closure))
                assert torch.allclose(*losses, rtol=1e-6)
                for schedule in sum(schedules, []):
                    is_plateau = isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau)
                    schedule.step(losses[0].item()) if is_plateau else schedule.step()
                assert [float(g["lr"]) for g in ours.param_groups] == [float(g["lr"]) for g in oracle.param_groups], step
            assert_equal(name, mine, theirs)


@pytest.mark.parametrize("name, option", CASES, ids=IDS)
@pytest.mark.parametrize("way", ["to torch", "from torch"])
def test_a_saved_state_goes_on_in_the_other_package(name, option, way):
    """Through torch.save and torch.load(weights_only=True), into an optimizer with other options."""
    mine, ours, theirs, oracle = pair(name, option.kwargs)
    first, second = (ours, oracle) if way == "to torch" else (oracle, ours)
    from_params, to_params = (mine, theirs) if way == "to torch" else (theirs, mine)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        give_gradients(generator, from_params)
        first.step()
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    for group in second.param_groups:
        group["lr"] = 0.5
    second.load_state_dict(torch.load(saved, weights_only=True))
    with torch.no_grad():
        for a, b in zip(to_params, from_params):
            a.copy_(b)
    for _ in range(3):
        give_gradients(generator, from_params, to_params)
        first.step()
        second.step()
        assert_equal(name, from_params, to_params)


@pytest.mark.parametrize("name", INFOS)
def test_a_state_without_fused_goes_on(name):
    """PyTorch's plain optimizers keep step counts on the CPU, and no "fused"; a group that is added later trains too."""
    mine, ours, theirs, _ = pair(name, dict(lr=0.01))
    plain = getattr(torch.optim, name)(theirs, lr=0.01)
    generator = torch.Generator().manual_seed(1)
    give_gradients(generator, theirs)
    plain.step()
    ours.load_state_dict(copy.deepcopy(plain.state_dict()))
    with torch.no_grad():
        for a, b in zip(mine, theirs):
            a.copy_(b)
    for params, optimizer in ((mine, ours), (theirs, plain)):
        params.append(torch.ones(4, 4, requires_grad=True))
        optimizer.add_param_group(dict(params=[params[-1]], lr=0.001))
    for _ in range(3):
        give_gradients(generator, mine, theirs)
        ours.step()
        plain.step()
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)  # PyTorch's plain formulas round in other places


@pytest.mark.parametrize("name", INFOS)
def test_hooks_of_loading_see_and_change_what_is_loaded(name):
    mine, ours, _, _ = pair(name, dict(momentum=0.9) if name == "SGD" else {}, torch.bfloat16)
    give_gradients(torch.Generator().manual_seed(1), mine)
    ours.step()
    saved = copy.deepcopy(ours.state_dict())

    def swap(_, state_dict):
        state = state_dict["state"]
        return {**state_dict, "state": {**state, 0: state[1], 1: state[0]}}

    seen = []
    ours.register_load_state_dict_pre_hook(swap)
    ours.register_load_state_dict_post_hook(lambda optimizer: seen.extend(value.dtype for value in optimizer.state[mine[0]].values()))
    ours.load_state_dict(saved)
    for place, slots in [(0, saved["state"][1]), (1, saved["state"][0]), (2, saved["state"][2])]:
        assert all(torch.equal(ours.state[mine[place]][key], value) for key, value in slots.items())
    assert set(seen) == {torch.float32}


def test_a_torch_without_muon_and_without_a_build_is_named():
    code = "import torch; del torch.optim.Muon; from mezzo import _library; _library.torch_version = lambda: '2.8'; import mezzo.amp"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UnsupportedTorch: mezzo has builds for torch" in done.stderr.splitlines()[-1]


def test_a_seed_that_no_kernel_takes_is_refused():
    with pytest.raises(ValueError, match="stochastic_rounding_seed must be from"):
        mezzo.optim.SGD([torch.ones(1)], stochastic_rounding_seed=2**63)


def test_old_states_whose_step_is_a_number_go_on():
    weight = torch.ones(3, requires_grad=True)
    optimizer = mezzo.optim.AdamW([weight])
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {0: dict(step=3, exp_avg=torch.ones(3), exp_avg_sq=torch.ones(3))}, "param_groups": groups})
    weight.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.state[weight]["step"] == 4


@pytest.mark.parametrize("name", [*INFOS, "LAMB"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_and_pickles_train_on_alike(name, how):
    model = torch.nn.Linear(6, 4, bias=False)
    optimizer = getattr(mezzo.optim, name)(model.parameters(), lr=0.01, max_grad_norm=0.5)
    generator = torch.Generator().manual_seed(1)
    give_gradients(generator, [model.weight])
    optimizer.step()
    copied, other = copy.deepcopy((model, optimizer)) if how == "deepcopy" else pickle.loads(pickle.dumps((model, optimizer)))
    assert type(other) is type(optimizer) and other.max_grad_norm == 0.5 and other.param_groups[0]["params"][0] is copied.weight
    for _ in range(3):
        give_gradients(generator, [model.weight], [copied.weight])
        optimizer.step()
        other.step()
        assert torch.equal(model.weight, copied.weight) and torch.equal(optimizer.grad_norm, other.grad_norm)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_half_parameters_keep_float32_moments_through_a_checkpoint(name, dtype):
    """Gradients of 1e-8, whose square is 0 in float16."""
    options = dict(momentum=0.9) if name == "SGD" else {}
    make = lambda params: getattr(mezzo.optim, name)(params, lr=1e-3, **options)
    mine = torch.ones(40, dtype=dtype).requires_grad_()
    ours = make([mine])
    scaled = (torch.full((40,), 1e-8) * 65536).to(dtype)

    def step(parameter, optimizer):
        parameter.grad = scaled.clone()
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(65536.0), torch.tensor(0.0)
        optimizer.step()

    step(mine, ours)
    other = mine.detach().clone().requires_grad_()
    resumed = make([other])
    resumed.load_state_dict(copy.deepcopy(ours.state_dict()))
    for key, value in ours.state[mine].items():
        assert value.dtype == torch.float32 and torch.equal(resumed.state[other][key], value), key
        assert key == "step" or value.abs().min() > 0, "not rounded to 0"
    for _ in range(3):
        step(mine, ours)
        step(other, resumed)
    assert torch.equal(mine, other)


def test_named_parameters_name_gradients_in_errors():
    model = torch.nn.Embedding(4, 3, sparse=True)
    optimizer = mezzo.optim.SGD(model.named_parameters(), max_grad_norm=1.0)
    model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="SGD: the gradient of weight is sparse"):
        optimizer.step()


def test_hooks_run_around_a_step_and_nothing_waits_for_a_device():
    """Tensors of the device "meta" hold no values: code that asks for one fails."""
    weight = torch.ones(4, 4, device="meta", requires_grad=True)
    calls = []
    for name in [*INFOS, "LAMB"]:
        optimizer = getattr(mezzo.optim, name)([weight], max_grad_norm=1.0)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        for scaler in (mezzo.GradScaler("cpu"), None):
            optimizer.zero_grad()
            loss = weight.sum()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
        assert optimizer.grad_norm.is_meta and optimizer.skipped.is_meta
    assert calls == ["before", "after"] * 2 * (len(INFOS) + 1)
