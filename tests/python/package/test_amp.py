"""mezzo.GradScaler, autocast and what goes with them, as a user's loop in Python has them."""
import collections
import copy
import math
import pickle
import re
import threading

import mezzo
import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.common_cuda import _create_scaling_case

INF, NAN = float("inf"), float("nan")
OPTIMIZERS = {
    "SGD": lambda p, **o: torch.optim.SGD(p, **o), "AdamW": lambda p, **o: torch.optim.AdamW(p, **o),
    "fused SGD": lambda p, **o: torch.optim.SGD(p, fused=True, **o), "fused AdamW": lambda p, **o: torch.optim.AdamW(p, fused=True, **o),
    "mezzo SGD": lambda p, **o: mezzo.optim.SGD(p, **o), "mezzo AdamW": lambda p, **o: mezzo.optim.AdamW(p, **o),
    "mezzo LAMB": lambda p, **o: mezzo.optim.LAMB(p, **o),
}
EVERY = pytest.mark.parametrize("kind", OPTIMIZERS)


def scaler_of(**options):
    scaler = mezzo.GradScaler("cpu", **options)
    scaler.scale(torch.ones(()))
    return scaler


def with_gradient(*values, kind="SGD", dtype=torch.float32, **options):
    weight = torch.ones(len(values), dtype=dtype, requires_grad=True)
    weight.grad = torch.tensor(values, dtype=dtype)
    return weight, OPTIMIZERS[kind]([weight], lr=0.1, **options)


# --- loops

@EVERY
@pytest.mark.parametrize("how", ["step", "unscale", "clip"])
def test_pytorchs_scaling_case_ends_where_training_without_a_scaler_ends(kind, how):
    """torch.testing's: one iteration of four is spoilt by inf. A scale that is a power of two changes no bit."""
    torch.manual_seed(0)
    *models, opt_control, opt_scaling, data, loss_fn, skip_iter = _create_scaling_case("cpu", optimizer_ctor=OPTIMIZERS[kind])
    for model, optimizer, is_scaled in zip(models, (opt_control, opt_scaling), (False, True)):
        scaler = mezzo.GradScaler("cpu", init_scale=128.0, growth_factor=2.0, growth_interval=1, enabled=is_scaled)
        for i, (inputs, target) in enumerate(data):
            optimizer.zero_grad()
            scaler.scale(loss_fn(model(inputs), target)).backward()
            if is_scaled and i == skip_iter:
                model[1].weight.grad.fill_(INF)
            if how != "step":
                scaler.unscale_(optimizer)
            if how == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 0.2)
            if is_scaled or i != skip_iter:
                assert scaler.step(optimizer).stepped() == (i != skip_iter)
            scaler.update()
        assert scaler.get_scale() == (512.0 if is_scaled else 1.0)
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)  # clipping by a norm that inf was in would leave NaN


def curve(amp, kind, steps=25):
    """A loop with autocast, a scaler, clipping and a schedule of PyTorch's. Returns losses, weights, and the scaler's state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps, cycle_momentum=False)
    scaler = amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=5)  # overflows at first
    losses, x, y = [], torch.randn(8, 16), torch.randint(3, (8,))
    for _ in range(steps):
        optimizer.zero_grad()
        with amp.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:
            schedule.step()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()], scaler.state_dict()


@EVERY
def test_a_users_loop_gives_the_same_bits_with_either_package(kind):
    (losses, weights, state), (expected, theirs, their_state) = curve(mezzo, kind), curve(torch.amp, kind)
    assert losses == expected and state == their_state and all(map(torch.equal, weights, theirs))
    assert losses[-1] < losses[0] and state["scale"] < 2.0**40


def test_several_optimizers_share_one_verdict():
    weights, optimizers = zip(*[with_gradient(1.0, kind=kind) for kind in OPTIMIZERS])
    scaler = scaler_of(init_scale=1024.0)
    for i, (weight, kind) in enumerate(zip(weights, OPTIMIZERS)):
        weight.grad.fill_(NAN if kind == "fused SGD" else 1024.0)
        assert scaler.step(optimizers[i]).stepped() == (kind != "fused SGD")
    scaler.update()
    assert scaler.get_scale() == 512 and scaler.get_skipped_steps() == 1
    assert [w.item() == 1 for w in weights] == [kind == "fused SGD" for kind in OPTIMIZERS]
    with pytest.raises(RuntimeError, match="no gradient was checked since the last update"):
        scaler.update()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [kind for kind in OPTIMIZERS if kind.startswith("mezzo")])
@pytest.mark.parametrize("amp", [mezzo, torch.amp], ids=["mezzo", "torch"])
def test_small_gradients_of_half_parameters_move_them_as_float32_ones_do(kind, dtype, amp):
    """1e-8 is 0 in float16. Scaled by 65536 it is not, and the division is in float32."""
    moved = []
    for of in (dtype, torch.float32):
        weight, optimizer = with_gradient(1.0, -2.0, kind=kind, dtype=of)
        with torch.no_grad():
            weight.zero_()
        scaler = amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        optimizer.param_groups[0]["lr"] = 1e5 if "SGD" in kind else 0.1
        weight.grad = (torch.tensor([1e-8, -2e-8]) * 65536).to(dtype).to(of)
        scaler.step(optimizer)
        scaler.update()
        moved.append(weight.detach().float())
    assert moved[1].abs().min() > 1e-4 and (moved[0] - moved[1]).abs().max() <= torch.finfo(dtype).eps * moved[1].abs().max()


# --- the scaler's interface

def test_nested_outputs_keep_their_structure():
    Pair = collections.namedtuple("Pair", "loss logits")
    scaler = mezzo.GradScaler("cpu", init_scale=8.0)
    one = torch.ones((), requires_grad=True)
    nested = {"a": [one, (one.half(), None)], "b": Pair(one * 2, torch.ones(2)), "c": collections.OrderedDict(x=one)}
    scaled = scaler.scale(nested)
    assert type(scaled["b"]) is Pair and type(scaled["c"]) is collections.OrderedDict and type(scaled["a"][1]) is tuple
    assert (scaled["a"][0], scaled["a"][1][1], scaled["b"].loss, scaled["c"]["x"]) == (8, None, 16, 8)
    assert scaled["a"][1][0].dtype == torch.float32 and torch.equal(scaled["b"].logits, torch.full((2,), 8.0))
    scaled["a"][0].backward()
    assert one.grad == 8
    assert list(scaler.scale(t for t in [one, one])) == [8, 8] and scaler.scale([]) == []
    Outputs = type("Outputs", (list,), {})
    assert type(scaler.scale(Outputs([one]))) is Outputs
    for bad in (1.0, "loss", [one, "loss"], None):
        if bad is None:
            assert scaler.scale(bad) is None
            continue
        with pytest.raises(ValueError, match="scale\\(\\) takes tensors"):
            scaler.scale(bad)
    off = mezzo.GradScaler("cpu", enabled=0)
    assert off.is_enabled() is False and off.scale(nested) is nested and off.get_scale() == 1 and off.state_dict() == {}


def test_states_copies_and_pickles():
    theirs = torch.amp.GradScaler("cpu", init_scale=12.0, growth_factor=3, backoff_factor=0.25, growth_interval=7)
    ours = mezzo.GradScaler("cpu", hysteresis=2)
    ours.load_state_dict(theirs.state_dict())
    assert {**ours.state_dict(), "_hysteresis_tracker": 0} == {**theirs.state_dict(), "_hysteresis_tracker": 0}
    weight, optimizer = with_gradient(1.0)
    ours.scale(torch.ones(()))
    ours.step(optimizer)
    for copy_of in (copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))):
        with pytest.raises(RuntimeError, match="copy or pickle it after update"):
            copy_of(ours)
    ours.update()
    for copy_of in (copy.deepcopy, copy.copy, lambda scaler: pickle.loads(pickle.dumps(scaler))):
        other = copy_of(ours)
        assert other.state_dict() == ours.state_dict() and other.get_growth_interval() == 7 and other._options == ours._options
        assert other.state_dict()["_growth_tracker"] == 1
    off = pickle.loads(pickle.dumps(mezzo.GradScaler("cpu", enabled=False)))
    assert not off.is_enabled() and off.get_growth_factor() == 2
    with pytest.raises(RuntimeError, match="the state_dict is empty"):
        ours.load_state_dict({})


def test_setters_and_new_scales():
    scaler = scaler_of()
    scaler.set_growth_factor(3)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(1)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()) == (3, 0.25, 1)
    for value in (4, 4.0, torch.tensor([4.0])):  # PyTorch fails for an int
        scaler.update(value)
        assert scaler.get_scale() == 4
    for value, error in [(0.0, "positive and finite"), (torch.ones(2), "1-element"), (INF, "positive and finite")]:
        with pytest.raises(ValueError, match=error):
            scaler.update(value)


@pytest.mark.parametrize("make", [lambda: mezzo.GradScaler("cpu", growth_interval=2e3), lambda: scaler_of().set_growth_interval(2e3)])
def test_an_interval_that_is_no_integer_is_refused(make):
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        make()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_scaler_for_a_missing_gpu_is_disabled_as_pytorchs():
    with pytest.warns(UserWarning, match="there is no CUDA device, so the scaler is disabled"):
        scaler = mezzo.GradScaler()
    weight, optimizer = with_gradient(2.0)
    assert scaler.step(optimizer).stepped() and weight.item() == pytest.approx(0.8)
    scaler.update()


@EVERY
def test_arguments_of_step_pass_and_its_value_comes_back(kind):
    class Counting(type(OPTIMIZERS[kind]([torch.ones(1)], lr=0.1))):
        def step(self, closure=None, *, factor=1):
            super().step()
            return factor * 2

    weight = torch.ones(1, requires_grad=True)
    optimizer = Counting([weight], lr=0.1, **(dict(fused=True) if kind.startswith("fused") else {}))
    scaler = scaler_of(init_scale=2.0)
    for gradient, returned in [(1.0, 6), (INF, None)]:
        weight.grad = torch.tensor([gradient])
        result = scaler.step(optimizer, factor=3)
        on_device = not kind.startswith(("SGD", "AdamW"))  # which is called to skip
        assert result.stepped() == math.isfinite(gradient) and result.returned == (6 if on_device else returned)
        assert result.found_inf == (not result.stepped())
        scaler.update()


def test_a_disabled_scaler_lets_a_closure_compute_the_gradients_that_are_clipped():
    weight, optimizer = with_gradient(0.0, kind="mezzo SGD", max_grad_norm=1.0)
    scaler = mezzo.GradScaler("cpu", enabled=False)
    for factor, stepped in [(100.0, True), (INF, False)]:
        def closure():
            optimizer.zero_grad()
            loss = (weight * factor).sum()  # noqa: B023 – runs at once
            loss.backward()
            return loss
        result = scaler.step(optimizer, closure)
        assert weight.item() == pytest.approx(0.9) and result.stepped() == stepped and result.found_inf == (not stepped)
        assert result.returned is not None


@EVERY
def test_an_error_in_the_step_leaves_nothing_for_later_steps(kind):
    weight, optimizer = with_gradient(1.0, kind=kind)
    scaler = scaler_of(init_scale=4.0)
    hook = optimizer.register_step_pre_hook(lambda *_: {}["no such key"])
    before = set(vars(optimizer))
    with pytest.raises(KeyError):
        scaler.step(optimizer)
    assert set(vars(optimizer)) == before
    hook.remove()
    scaler.update()
    scaler.step(optimizer)
    assert weight.item() < 1


@EVERY
@pytest.mark.parametrize("unscales", [False, True])
def test_a_step_that_failed_may_be_repeated_as_in_pytorch(kind, unscales):
    """A step that PyTorch's fused optimizers failed in starts again from scaled gradients, as PyTorch's scaler has it."""
    moved = []
    for amp in (mezzo, torch.amp):
        weight, optimizer = with_gradient(4.0, kind=kind)
        scaler = amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.ones(()))
        hook = optimizer.register_step_pre_hook(lambda *_: {}["no such key"])
        if unscales:
            scaler.unscale_(optimizer)
        with pytest.raises(KeyError):
            scaler.step(optimizer)
        hook.remove()
        vars(optimizer).pop("grad_scale", None)  # which PyTorch's scaler leaves there, and multiplies by its scale
        scaler.step(optimizer)
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        scaler.update()
        moved.append((weight.item(), scaler.state_dict()))
    assert moved[0] == moved[1] and moved[0][0] < 1


@pytest.mark.parametrize("kind", ["fused AdamW", "mezzo AdamW"])
def test_pytorchs_scaler_passes_over_an_optimizer_without_gradients(kind):
    weight, optimizer = with_gradient(1.0, kind=kind)
    idle, other = with_gradient(1.0, kind=kind)
    idle.grad = None
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    for each in (optimizer, other):
        scaler.step(each)
    scaler.update()
    assert weight.item() < 1 and idle.item() == 1


@pytest.mark.parametrize("unscales", [False, True])
def test_pytorchs_scaler_is_refused_where_it_sees_no_gradient_of_masters(unscales):
    model = nn.Linear(2, 1)
    masters = mezzo.MasterWeights(model, torch.float16)
    optimizer = mezzo.optim.SGD(masters.named_parameters(), lr=0.1)
    before = model.weight.detach().clone()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(model(torch.ones(1, 2).half()).float().sum()).backward()
    if unscales:
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="torch.amp.GradScaler does not check gradients on half copies"):
        scaler.step(optimizer)
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", ["fused SGD", "mezzo SGD"])
def test_a_scale_of_the_users_own_multiplies(kind):
    weight, optimizer = with_gradient(15.0, kind=kind)
    optimizer.grad_scale = torch.tensor([3.0])
    scaler = scaler_of(init_scale=5.0)
    scaler.step(optimizer)
    assert weight.item() == pytest.approx(0.9) and not hasattr(optimizer, "grad_scale")


def test_an_optimizer_of_the_deprecated_protocol_is_refused_and_its_weights_stay():
    class Old(torch.optim.SGD):
        _step_supports_amp_scaling = True

        def step(self, closure=None, grad_scaler=None):
            super().step(closure)

    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    with pytest.raises(RuntimeError, match="Old.step takes a grad_scaler, which PyTorch has deprecated"):
        scaler_of().step(Old([weight], lr=0.1))
    assert weight.item() == 1


# --- the defects of torch.amp.GradScaler (D1 to D7 of the project's notes)

@EVERY
def test_d1_and_d7_the_scale_never_reaches_zero(kind):
    scaler = scaler_of(init_scale=float(torch.finfo(torch.float32).tiny) * 2)
    weight, optimizer = with_gradient(INF, kind=kind)
    for _ in range(4):
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == torch.finfo(torch.float32).tiny
    weight.grad = torch.zeros(1)
    assert scaler.step(optimizer).stepped() and weight.item() == pytest.approx(1.0, rel=0.01)
    theirs = torch.amp.GradScaler("cpu", init_scale=1e-45)
    theirs.scale(torch.ones(()))
    weight, optimizer = with_gradient(INF)
    theirs.step(optimizer)
    theirs.update()
    weight.grad = torch.zeros(1)
    theirs.step(optimizer)
    assert weight.isnan(), "PyTorch's defect"


@EVERY
def test_d2_and_d7_an_overflow_by_the_division_is_found(kind):
    weight, optimizer = with_gradient(1e30, kind=kind)
    scaler = scaler_of(init_scale=2.0**-40)
    result = scaler.step(optimizer)
    scaler.update()
    assert not result.stepped() and weight.item() == 1 and scaler.get_scale() == 2.0**-41


def test_d3_a_lower_growth_interval_still_grows():
    weight, optimizer = with_gradient(1.0)
    scaler = scaler_of(init_scale=2.0)
    for _ in range(4):
        scaler.step(optimizer)
        scaler.update()
    scaler.set_growth_interval(2)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4


@EVERY
def test_d4_closures_are_refused_in_either_form(kind):
    weight, optimizer = with_gradient(1.0, kind=kind)
    scaler = scaler_of()
    for call in (lambda: scaler.step(optimizer, lambda: None), lambda: scaler.step(optimizer, closure=lambda: None)):
        with pytest.raises(RuntimeError, match="takes no closure"):
            call()
    assert weight.item() == 1
    assert mezzo.GradScaler("cpu", enabled=False).step(optimizer, lambda: 7).returned == 7


@EVERY
def test_d5_a_step_without_gradients_may_be_repeated(kind):
    weight, optimizer = with_gradient(4.0, kind=kind)
    gradient, weight.grad = weight.grad, None
    scaler = scaler_of(init_scale=4.0)
    with pytest.raises(RuntimeError, match=f"no gradient of {type(optimizer).__name__} was checked"):
        scaler.step(optimizer)
    weight.grad = gradient
    scaler.unscale_(optimizer)  # PyTorch: "unscale_() has already been called"
    assert weight.grad.item() == 1 and scaler.step(optimizer).stepped()


@EVERY
def test_d6_a_skipped_step_is_told_from_one_that_returns_none(kind):
    weight, optimizer = with_gradient(1.0, kind=kind)
    for gradient in (1.0, NAN):
        scaler = scaler_of()
        weight.grad = torch.tensor([gradient])
        result = scaler.step(optimizer)
        assert result.returned is None and result.stepped() == (gradient == 1)


def test_the_limit_on_skips_names_the_parameter():
    model = nn.Linear(2, 1)
    optimizer = mezzo.optim.SGD(model.named_parameters())
    scaler = mezzo.GradScaler("cpu", max_consecutive_skips=1)
    scaler.scale(model(torch.full((1, 2), INF)).sum()).backward()
    with pytest.raises(RuntimeError, match=r"1 of 2 gradients of SGD held inf or NaN: weight \[1, 2\]"):
        scaler.step(optimizer)


# --- autocast, policies, logs and tracers

def test_autocast_is_a_decorator_on_any_thread_and_reenters():
    @mezzo.autocast("cpu", torch.float16)
    def product(x, depth=0):
        """Doc."""
        return product(x, depth - 1) if depth else ((x @ x).dtype, torch.is_autocast_enabled("cpu"))

    x, seen = torch.ones(2, 2), []
    threads = [threading.Thread(target=lambda: seen.extend(product(x, depth=3) for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {(torch.float16, True)} and len(seen) == 200
    assert copy.deepcopy(mezzo.autocast("cpu", torch.float16))(lambda: x @ x)().dtype == torch.float16
    assert product.__name__ == "product" and product.__doc__ == "Doc." and not torch.is_autocast_enabled("cpu")
    with pytest.raises(TypeError, match="needs a function, got Tensor"):
        mezzo.autocast("cpu")(x)


def test_autocast_takes_pytorchs_default_dtype_and_refuses_what_it_cannot_use():
    x = torch.ones(2, 2)
    with mezzo.autocast("cpu"):
        assert (x @ x).dtype == torch.bfloat16
        with mezzo.autocast("cpu", enabled=False), torch.autocast("cpu", torch.float16), mezzo.autocast("cpu"):
            assert (x @ x).dtype == torch.float16
    with mezzo.autocast("cpu", torch.float32, enabled=False):
        assert (x @ x).dtype == torch.float32
    with pytest.raises(ValueError, match="^autocast: dtype must be float16 or bfloat16, got float32"), mezzo.autocast("cpu", torch.float32):
        pass
    with pytest.raises(RuntimeError):
        mezzo.autocast("toaster")
    assert not torch.is_autocast_enabled("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.dense(self.norm(x))


def test_logs_and_tracers_name_modules():
    model = nn.Sequential(collections.OrderedDict(layers=nn.ModuleList([Block(), Block()]), head=nn.Linear(4, 2)))
    model.forward = lambda x: model.head(model.layers[1](model.layers[0](x)))
    x = torch.randn(3, 4)
    log = mezzo.CastLog(model)
    with mezzo.autocast("cpu", torch.bfloat16, log=log):
        model(x)
    assert {entry["module"] for entry in log.entries()} == {"layers.0.dense", "layers.1.dense", "head"}
    dry = mezzo.CastLog(model)
    with dry.dry_run("cpu", torch.bfloat16):
        model(x)
    assert dry.entries() == log.entries() and log.to_table().startswith("op")
    hook = model.head.register_forward_pre_hook(lambda *_: {}["no such key"])
    with pytest.raises(KeyError), mezzo.FiniteTracer(model) as tracer:  # modules that raise leave no scope behind
        model(x)
    torch.zeros(1).log()
    assert tracer.first is None
    hook.remove()
    with torch.no_grad():
        model.layers[1].dense.weight[:] = 1e38
        model.layers[1].norm.bias[:] = 100
    with mezzo.FiniteTracer(model) as tracer:
        model(x)
        with pytest.raises(RuntimeError, match="FiniteTracer: aten::addmm produced inf or NaN in forward, in module layers.1.dense"):
            tracer.check()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_threads_share_a_log_that_names_modules():
    """Blocks that begin and end while others run the model."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    log, errors = mezzo.CastLog(model), []
    amp = mezzo.autocast("cpu", torch.bfloat16, log=log)

    def run():
        try:
            for _ in range(50):
                with amp:
                    model(torch.ones(2, 8))
        except Exception as error:  # noqa: BLE001 – of another thread
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and {entry["module"] for entry in log.entries()} == {"0", "1.0"}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_module_that_began_before_its_hooks_is_left_without_an_error():
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(4, 4)

        def forward(self, x):
            tracer.__enter__()
            return self.dense(x)

    model = Late()
    tracer = mezzo.FiniteTracer(model)
    model(torch.ones(1, 4))
    tracer.__exit__(None, None, None)


def test_a_policy_is_a_value():
    policy = mezzo.OpPolicy.preset("cpu")
    for other in (copy.copy(policy), copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert other.lines() == policy.lines()
        assert other.set("gelu", "fp32") is other
        assert other.get("gelu") == "fp32" and policy.get("gelu") == "untouched"
    for name in ("cuda", "cuda_2020", "norms_stay_low", "masks_fp32"):
        assert pickle.loads(pickle.dumps(mezzo.OpPolicy.preset(name))).lines() == mezzo.OpPolicy.preset(name).lines()
    assert pickle.loads(pickle.dumps(mezzo.OpPolicy())).lines() == []
    log = mezzo.CastLog()
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"a CastLog cannot be copied or pickled; keep its entries\(\)"):
            copy_of(log)


def test_what_cannot_be_pickled_says_what_to_keep():
    model, scaler = nn.Linear(2, 1), mezzo.GradScaler("cpu")
    masters = mezzo.MasterWeights(model, torch.bfloat16)
    optimizer = torch.optim.SGD(masters.parameters(), lr=0.1)
    scaler.scale(model(torch.ones(1, 2, dtype=torch.bfloat16)).sum()).backward()
    masters.accumulate_gradients()
    with mezzo.FiniteTracer() as tracer:
        torch.zeros(2).log()
    for kept, advice in ((masters, r"a MasterWeights .* save its state_dict\(\)"),
                         (scaler.step(optimizer), r"a StepResult .* keep its stepped\(\)"),
                         (tracer, "a FiniteTracer that has traced .* keep its first")):
        for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=advice):
                copy_of(kept)
    assert str(pickle.loads(pickle.dumps(tracer.first))) == str(tracer.first)
    assert pickle.loads(pickle.dumps(mezzo.FiniteTracer())).first is None
    assert pickle.loads(pickle.dumps(mezzo.GradScaler("cpu", enabled=False).step(optimizer))).stepped()


# --- master weights and advice

class WithNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.batch, self.layer, self.twice = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.again = self.twice
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))


@pytest.mark.parametrize("keep", [False, True])
def test_masters_know_norms_by_the_modules(keep):
    model = WithNorms()
    masters = mezzo.MasterWeights(model, torch.bfloat16, keep_norms_fp32=keep)
    full = {name for name, p in model.named_parameters() if p.dtype == torch.float32}
    assert full == {"batch.weight", "batch.bias"} | ({"layer.weight", "layer.bias"} if keep else set())
    names = [name for name, _ in masters.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())
    assert {"twice.weight", "again.weight"} <= set(masters.state_dict())
    assert all(t.dtype == torch.float32 and t.requires_grad for t in masters.parameters())


def test_master_weights_train_as_a_float32_model_does_with_other_optimizers_too():
    """Gradients of 1e-8, scaled by 65536, in float16."""
    results = []
    for make, is_mezzo in [(mezzo.optim.SGD, True), (torch.optim.SGD, False), (torch.optim.SGD, None)]:
        torch.manual_seed(0)
        model = nn.Linear(8, 2).half().float()
        masters = mezzo.MasterWeights(model, torch.float16) if is_mezzo is not None else None
        optimizer = make(masters.named_parameters() if masters else model.parameters(), lr=1e5)
        scaler = mezzo.GradScaler("cpu")
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(x.to(model.weight.dtype)).float().sum() * 1e-8).backward()
            if is_mezzo is False:
                masters.accumulate_gradients()
            assert scaler.step(optimizer).stepped()
            scaler.update()
            if is_mezzo is False:
                masters.copy_to_model()
                model.zero_grad()
        results.append(masters.state_dict()["weight"] if masters else model.weight.detach())
        if masters:
            assert torch.equal(model.weight, results[-1].half()) and all(p.grad is None for p in model.parameters()) != is_mezzo
    start = nn.Linear(8, 2)
    torch.manual_seed(0)
    start = nn.Linear(8, 2).half().float().weight.detach()
    for moved in results[:2]:
        assert (results[2] - start).abs().max() > 1e-3
        assert (moved - results[2]).norm() <= 4 * torch.finfo(torch.float16).eps * (results[2] - start).norm()


def test_advice_on_a_model():
    model = Block()
    scaler = mezzo.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(torch.randn(3, 4)).sum() * 1e-9).backward()
    advice = mezzo.advise_scale(model, scaler)
    assert [group.name for group in advice.groups] == ["norm", "dense"] and advice.needs_scale
    largest = max(p.grad.abs().max().item() for p in model.parameters()) / 1024
    assert 65504 / 8 < advice.recommended_scale * largest <= 65504 / 4 or advice.recommended_scale == 2**24
    assert str(advice).splitlines()[0].startswith("gradients")


# --- messages

def half_trained():
    weight, optimizer = with_gradient(1.0, dtype=torch.float16)
    return scaler_of().step(optimizer)


def complex_trained():
    weight, optimizer = with_gradient(1.0, dtype=torch.complex64)
    return scaler_of().step(optimizer)


def without_gradients():
    return scaler_of().step(torch.optim.SGD([torch.ones(1, requires_grad=True)]))


def entered(scope, function=lambda: None):
    with scope:
        return function()


def product(dtype):
    return torch.ones(2, 2, dtype=dtype) @ torch.ones(2, 2).half()


LINEAR = nn.Linear(2, 2)
CPU_HALF = ("cpu", torch.float16)


@pytest.mark.parametrize("call, error, message", [
    (lambda: mezzo.autocast(3), TypeError, "device_type is a int, expected a str or torch.device"),
    (lambda: mezzo.autocast("cpu", "float16"), TypeError, "dtype is a str, expected a torch.dtype"),
    (lambda: mezzo.autocast(*CPU_HALF, policy="cuda"), TypeError, "policy is a str, expected a OpPolicy"),
    (lambda: mezzo.autocast(*CPU_HALF, log="cuda"), TypeError, "log is a str, expected a CastLog"),
    (lambda: entered(mezzo.autocast("cpu", torch.float64)), ValueError, "^autocast: dtype must be float16 or bfloat16, got float64"),
    (lambda: entered(mezzo.autocast("meta", torch.float16)), ValueError, "^autocast: device type meta has no autocast"),
    (lambda: entered(mezzo.autocast(*CPU_HALF, policy=mezzo.OpPolicy().set("mm", "banned")), lambda: product(torch.half)), RuntimeError, "disabled"),
    (lambda: entered(mezzo.autocast(*CPU_HALF, policy=mezzo.OpPolicy().set("mm", "promote")), lambda: product(torch.bfloat16)), RuntimeError,
     "set this op's policy to fp32"),
    (lambda: mezzo.OpPolicy.preset(3), TypeError, "name is a int, expected a str"),
    (lambda: mezzo.OpPolicy().set("mm", torch.float32), TypeError, "policy is a dtype, expected a str"),
    (lambda: mezzo.OpPolicy().set("nope", "fp32"), ValueError, "there is no op aten::nope"),
    (lambda: mezzo.OpPolicy().set("mm", "fp32_set_opt_dtype"), ValueError, "Use the policy fp32"),
    (lambda: mezzo.OpPolicy().set("mm", "fp32_append_dtype"), ValueError, "Use the policy fp32"),
    (lambda: mezzo.CastLog(3), TypeError, "model is a int, expected a Module"),
    (lambda: mezzo.CastLog().dry_run("cpu", "half"), TypeError, "dtype is a str, expected a torch.dtype"),
    (lambda: mezzo.FiniteTracer(ignore_ops="aten::log"), TypeError, "ignore_ops is a str, expected a list or tuple"),
    (lambda: mezzo.FiniteTracer(ignore_ops=[3]), TypeError, r"ignore_ops\[0\] is a int, expected a str"),
    (lambda: mezzo.MasterWeights(LINEAR, torch.float32), ValueError, "dtype must be float16 or bfloat16, got float32"),
    (lambda: mezzo.MasterWeights(LINEAR, "half"), TypeError, "dtype is a str, expected a torch.dtype"),
    (lambda: mezzo.MasterWeights(LINEAR.parameters(), torch.float16), TypeError, "the name of a parameter is a Tensor, expected a str"),
    (lambda: mezzo.MasterWeights(nn.Linear(2, 2).double(), torch.float16), ValueError, "parameter weight is float64"),
    (lambda: mezzo.MasterWeights(nn.Linear(2, 2), torch.float16).load_state_dict(nn.Linear(2, 2).half().state_dict()), ValueError, "expected float32"),
    (lambda: mezzo.GradScaler("cpu", backoff_factor=1), ValueError, "set the option static_scale"),
    (lambda: mezzo.GradScaler("cpu", growth_interval=0), ValueError, "set the option static_scale"),
    (lambda: mezzo.GradScaler(3), TypeError, "device_type is a int, expected a str or torch.device"),
    (half_trained, ValueError, "run forward under autocast"),
    (complex_trained, ValueError, "gradient of dtype complex64"),
    (without_gradients, RuntimeError, "no gradient of SGD was checked.* set the option allow_no_gradients"),
    (lambda: mezzo.GradScaler("cpu", growth_interval=2**70), ValueError, "growth_interval must be between 1 and 2147483647"),
    (lambda: mezzo.GradScaler("cpu", hysteresis=-2**70), ValueError, "hysteresis must be between 1"),
    (lambda: scaler_of().set_growth_interval(2**70), ValueError, "growth_interval must be between 1 and 2147483647"),
    (lambda: scaler_of().load_state_dict(None), TypeError, "state_dict is a NoneType, expected a Mapping"),
    (lambda: scaler_of().load_state_dict({3: 3}), TypeError, "a key of the state_dict is a int, expected a str"),
    (lambda: scaler_of().load_state_dict({"scale": "x"}), TypeError, "entry 'scale' of the state_dict is a str, expected a number"),
    (lambda: scaler_of().load_state_dict(scaler_of().state_dict() | {"growth_interval": 2**70}), ValueError, 'entry "growth_interval"'),
    (lambda: mezzo.advise_scale("x", 1.0), TypeError, "gradients is a str, expected a Module or Mapping"),
    (lambda: mezzo.advise_scale({"a": torch.ones(2)}, 0, unscaled=True), ValueError, "scale must be positive and finite, got 0.0"),
    (lambda: mezzo.advise_scale({"a": [3]}, 1), TypeError, "a gradient of a is a int, expected a torch.Tensor"),
    (lambda: mezzo.advise_scale({"a": torch.ones(2).int()}, 1), ValueError, "group a has a gradient of dtype int32"),
    (lambda: mezzo.optim.AdamW([torch.ones(1)], max_grad_norm=None), ValueError, "max_grad_norm must be at least 0, got None"),
    (lambda: mezzo.optim.AdamW([torch.ones(1)], stochastic_rounding_seed=1.5), TypeError, "cannot be interpreted as an integer"),
    (lambda: mezzo.optimize(3), TypeError, "model is a int, expected a Module"),
])  # fmt: skip
def test_messages_are_a_line_and_name_things_of_python(call, error, message):
    with pytest.raises(error, match=message) as raised:
        call()
    assert not re.search(r"\n|\bk[A-Z]|Options|Guard|(torch|mezzo|c10|std)::|__torch__", str(raised.value)), raised.value


def test_numbers_of_numpy_are_a_state():
    scaler = mezzo.GradScaler("cpu")
    scaler.load_state_dict({key: np.float32(value) if isinstance(value, float) else np.int64(value) for key, value in
                            mezzo.GradScaler("cpu", init_scale=8.0, growth_interval=7).state_dict().items()})
    assert scaler.get_scale() == 8 and scaler.get_growth_interval() == 7
    scaler.load_state_dict(scaler.state_dict() | {"scale": 2**70})
    assert scaler.get_scale() == 2**70
