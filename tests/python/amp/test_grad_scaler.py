"""GradScaler against torch.amp.GradScaler: random programs of calls, run on equal clones, compared after every call.

Each program runs twice. With `reproduce_pytorch`, mezzo is compared with torch.amp.GradScaler itself, at scales down to
subnormal and zero too. By default it is compared with `DocumentedGradScaler` below, which is PyTorch's class plus the
documented differences D1 to D3, and nothing else. Asserts check the other differences:
- arguments out of range are refused where PyTorch takes them (`OUT_OF_RANGE`);
- D5: step() without any gradient leaves the optimizer's stage as it was; PyTorch's is put back before going on;
- an optimizer that applies the scale itself, without any gradient, is an error as for any other.
Both sides drive the same optimizers: torch.optim's, also the fused ones, and mezzo.optim.SGD.
"""
import collections
import copy
import math
import random

import mezzo
import pytest
import torch
from devices import DEVICES
from scaled_optimizers import Told
from torch.amp.grad_scaler import OptState
from torch.utils._python_dispatch import TorchDispatchMode

INF, NAN = float("inf"), float("nan")
MIN_SCALE = torch.finfo(torch.float32).tiny
PROGRAMS = {"cpu": 2000, "cuda": 1000}  # where each comparison waits for the device


class DocumentedGradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler with the differences that mezzo documents; `differences` counts their effects."""

    differences = collections.Counter()

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if found and not next(iter(found.values())):
            true_inv_scale = self._scale.double().reciprocal().float()
            grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            values = [g._values() if g.is_sparse else g for g in grads]
            if allow_fp16:  # checked only, to be unscaled by the optimizer
                values = [v.float() * true_inv_scale for v in values]
            d1 = not math.isfinite(self._scale * true_inv_scale)
            d2 = not all(v.isfinite().all() for v in values)
            self.differences.update(D1=d1, D2=d2 and not d1)
            if d1 or d2:
                next(iter(found.values())).fill_(1.0)
        return found

    def update(self, new_scale=None):
        found_any = any(state["found_inf_per_device"] for state in self._per_optimizer_states.values()) \
            if self._enabled else False
        if found_any and new_scale is None and self._scale is not None:
            if self._growth_tracker >= self._growth_interval:
                self.differences.update(D3=1)
                self._growth_tracker.clamp_(max=self._growth_interval - 1)
        super().update(new_scale)
        if self._enabled and self._scale < MIN_SCALE:
            self.differences.update(D1_min_scale=1)
            self._scale.clamp_(min=MIN_SCALE)


def bits(tensor):
    if tensor is None:
        return None
    if tensor.is_sparse:
        return ("sparse", tensor.is_coalesced(), bits(tensor._indices()), bits(tensor._values()))
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    data = tensor.detach().cpu()
    # A NaN is a NaN: its sign and payload are the compiler's choice.
    data = torch.where(data.isnan(), torch.full_like(data, NAN), data) if data.is_floating_point() else data
    data = data.contiguous().view(integers[data.element_size()])
    return str(tensor.dtype), tuple(tensor.shape), data.numpy().tobytes()


def on(device, value):
    """The argument of a call, on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return [on(device, v) for v in value] if isinstance(value, list) else value


class Side:
    def __init__(self, setup, mezzo, reproduce_pytorch, device):
        self.mezzo = mezzo
        self.device = device
        self.reproduce_pytorch = reproduce_pytorch
        self.options = setup["options"]
        self.parameters, self.optimizers = [], []
        for kind, parameters in setup["optimizers"]:
            parameters = [p.to(device, copy=True).requires_grad_() for p in parameters]
            self.parameters.append(parameters)
            self.optimizers.append(self.optimizer(kind, parameters))
        self.saved = None
        self.new_scaler()

    def optimizer(self, kind, parameters):
        return {
            "sgd": lambda: Told(torch.optim.SGD)(parameters, lr=0.125),
            "momentum": lambda: Told(torch.optim.SGD)(parameters, lr=0.125, momentum=0.5),
            "adamw": lambda: Told(torch.optim.AdamW)(parameters, lr=0.01),
            "fused": lambda: Told(torch.optim.SGD)(parameters, lr=0.125, fused=True),
            "mezzo": lambda: Told(mezzo.optim.SGD)(parameters, lr=0.125),
        }[kind]()

    def new_scaler(self):
        if self.mezzo:
            self.scaler = mezzo.GradScaler(self.device, **self.options, reproduce_pytorch=self.reproduce_pytorch)
        else:
            kind = torch.amp.GradScaler if self.reproduce_pytorch else DocumentedGradScaler
            self.scaler = kind(self.device, **self.options)

    def loss(self, parameter, coefficients, dtype):
        return (parameter.to(dtype) * coefficients.to(dtype)).sum()

    # One method for each kind of call. Its results are compared.

    def backward(self, index, dtype, as_list, coefficients):
        outputs = [self.loss(p, c, dtype) for p, c in zip(self.parameters[index], coefficients) if c is not None]
        if not outputs:
            return None
        if not as_list:
            outputs = sum(outputs[1:], outputs[0])
        scaled = self.scaler.scale(outputs)
        if as_list:
            assert isinstance(scaled, list)
            torch.autograd.backward(scaled)
            return [bits(s) for s in scaled]
        scaled.backward()
        return bits(scaled)

    def scale(self, outputs):
        scaled = self.scaler.scale(outputs)
        return [bits(s) for s in scaled] if isinstance(outputs, list) else bits(scaled)

    def set_grad(self, index, which, grad):
        self.parameters[index][which].grad = None if grad is None else grad.clone()

    def zero_grad(self, index):
        for parameter in self.parameters[index]:
            parameter.grad = None

    def unscale_(self, index):
        self.scaler.unscale_(self.optimizers[index])

    def step(self, index):
        result = self.scaler.step(self.optimizers[index])
        return result.stepped() if self.mezzo else bool(result)

    def update(self, *new_scale):
        self.scaler.update(*new_scale)

    def set_growth_factor(self, value):
        self.scaler.set_growth_factor(value)

    def set_backoff_factor(self, value):
        self.scaler.set_backoff_factor(value)

    def set_growth_interval(self, value):
        self.scaler.set_growth_interval(value)

    def getters(self):
        if self.scaler.is_enabled():  # PyTorch raises AttributeError otherwise
            scaler = self.scaler
            return [scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()]

    def save(self):
        self.saved = copy.deepcopy(self.scaler.state_dict())

    def load(self, state):
        self.scaler.load_state_dict(state)

    def resume(self):
        """Does the same as a new process."""
        self.save()
        self.new_scaler()
        if self.saved:
            self.scaler.load_state_dict(self.saved)

    def state(self):
        state = self.scaler.state_dict()
        scale = self.scaler.get_scale()
        assert isinstance(scale, float)
        return (
            {k: bits(torch.tensor(v, dtype=torch.float64)) if isinstance(v, float) else v for k, v in state.items()},
            bits(torch.tensor(scale, dtype=torch.float64)),
            [[(bits(p), bits(p.grad)) for p in parameters] for parameters in self.parameters],
        )


# --- Random programs ---

def dtypes_of(device):
    """Of gradients; PyTorch unscales none in bfloat16 on a GPU, where mezzo does."""
    half = torch.bfloat16 if device == "cpu" else torch.float16
    return [torch.float32, torch.float32, half, torch.float64, torch.float16]


def random_values(rng, shape, dtype, wild):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rng.randrange(2**31)), dtype=torch.float64)
    if wild and values.numel():
        values.view(-1)[rng.randrange(values.numel())] = rng.choice([INF, -INF, NAN, 1e38, 6e4, 1e-8])
    return values.to(dtype)


DEVICE_KINDS = ("fused", "mezzo")  # which decide on the device


def random_setup(rng, all_dtypes):
    optimizers = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind = rng.choice(["sgd", "momentum", "adamw", "fused", "mezzo"])
        dtypes = [torch.float32] if kind in DEVICE_KINDS else all_dtypes if rng.random() < 0.2 else all_dtypes[:4]
        parameters = [random_values(rng, rng.choice([[], [1], [3], [0], [2, 3]]), rng.choice(dtypes), wild=False)
                      for _ in range(rng.randint(1, 3))]
        optimizers.append((kind, parameters))
    low = rng.random() < 0.3
    return {
        "options": dict(
            init_scale=rng.choice([1e-37, MIN_SCALE, 2e-38, 0.1, 0.25] if low
                                  else [1.0, 3.0, 8.0, 1024.0, 65536.0, 1e38]),
            growth_factor=rng.choice([2.0, 1.5, 4.0, 2.0**40]),
            backoff_factor=rng.choice([0.5, 0.3, 0.25, 2.0**-40]),
            growth_interval=rng.choice([1, 2, 3, 2000]),
            enabled=rng.random() < 0.93,
        ),
        "optimizers": optimizers,
        "dtypes": all_dtypes,
    }


OUT_OF_RANGE = {
    "set_growth_factor": [1.0, 0.0, INF, NAN],
    "set_backoff_factor": [1.0, 0.0, -1.0, NAN],
    "set_growth_interval": [0, -1, 2**31],
    "update": [0.0, -2.0, INF, NAN, 1e-46],
}


def random_gradient(rng, parameter, dense_only):
    kind = rng.choice(["dense", "dense", "none", "sparse", "coalesced"])
    if kind == "none":
        return None
    if dense_only or kind == "dense" or parameter.dim() == 0 or parameter.shape[0] == 0:
        return random_values(rng, parameter.shape, parameter.dtype, rng.random() < 0.3)
    count = rng.randint(1, 4)
    indices = torch.tensor([[rng.randrange(parameter.shape[0]) for _ in range(count)]])
    values = random_values(rng, [count, *parameter.shape[1:]], parameter.dtype, rng.random() < 0.3)
    gradient = torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
    return gradient.coalesce() if kind == "coalesced" else gradient


def random_call(rng, setup):
    index = rng.randrange(len(setup["optimizers"]))
    kind, parameters = setup["optimizers"][index]
    name = rng.choices(
        ["backward", "scale", "set_grad", "zero_grad", "unscale_", "step", "update", "set", "getters", "save", "load",
         "resume", "iteration"], [6, 1, 2, 1, 3, 6, 6, 2, 0.5, 1, 1, 0.3, 6])[0]
    if name == "backward":
        coefficients = [None if rng.random() < 0.1 else random_values(rng, p.shape, torch.float64, rng.random() < 0.1)
                        for p in parameters]
        return [("backward", index, rng.choice(setup["dtypes"]), rng.random() < 0.3, coefficients)]
    if name == "scale":
        outputs = [random_values(rng, rng.choice([[], [1], [2, 2], [0]]), rng.choice(setup["dtypes"]), False)
                   for _ in range(rng.randint(0, 3))]
        return [("scale", outputs if rng.random() < 0.5 or not outputs else outputs[0])]
    if name == "set_grad":
        which = rng.randrange(len(parameters))
        return [("set_grad", index, which, random_gradient(rng, parameters[which], kind != "sgd"))]
    if name == "update":
        value = rng.choice([0.25, 2.0, 3.3, 1024.0, 1e-37, rng.choice(OUT_OF_RANGE["update"])])
        return [("update", *rng.choices(
            [(), (value,), (torch.tensor(value),), (torch.tensor(value, dtype=torch.float64),), (torch.ones(2),),
             (torch.ones(1, requires_grad=True),)], [12, 1, 1, 1, 0.3, 0.3])[0])]
    if name == "set":
        what = rng.choice(["growth_factor", "backoff_factor", "growth_interval", "growth_interval"])
        good = {"growth_factor": [2.0, 3.0], "backoff_factor": [0.5, 0.1], "growth_interval": [1, 2, 5]}[what]
        return [("set_" + what, rng.choice(good if rng.random() < 0.8 else OUT_OF_RANGE["set_" + what]))]
    if name == "iteration":
        overflow = rng.random() < 0.3
        coefficients = [random_values(rng, p.shape, torch.float64, overflow) for p in parameters]
        backward = ("backward", index, torch.float32, False, coefficients)
        return [("zero_grad", index), backward, ("step", index), ("update",)]
    return [(name, index) if name in ("zero_grad", "unscale_", "step") else (name,)]


# --- Running them ---

def outcome(side, call):
    name, *arguments = call
    try:
        return "returned", getattr(side, name)(*on(side.device, arguments))
    except (AssertionError, RuntimeError) as error:
        return "RuntimeError", error
    except ValueError as error:
        return "ValueError", error


def active(theirs):
    return theirs.scaler.is_enabled() and theirs.scaler._scale is not None


def refused(theirs, call):
    """Whether mezzo must refuse what PyTorch takes (or refuses as AssertionError)."""
    name, *arguments = call
    if name.startswith("set_growth") or name == "set_backoff_factor":
        return any(arguments[0] is value or arguments[0] == value for value in OUT_OF_RANGE[name])
    if name == "update" and arguments and active(theirs):
        value = arguments[0]
        if isinstance(value, torch.Tensor) and (value.numel() != 1 or value.requires_grad):
            return True
        lowest = 1e-45 if theirs.reproduce_pytorch else MIN_SCALE
        return not lowest <= float(value) < INF
    if name == "load" and theirs.scaler.is_enabled() and arguments[0]:
        return arguments[0]["scale"] <= 0
    return False


def unchecked(theirs, index):
    """Whether no gradient of the optimizer has been checked, nor will be in a step."""
    if not active(theirs):
        return False
    state = theirs.scaler._per_optimizer_states[id(theirs.optimizers[index])]
    ready = state["stage"] is OptState.READY
    has_gradients = any(p.grad is not None for p in theirs.parameters[index])
    return not state["found_inf_per_device"] and not (ready and has_gradients)


def run(seed, reproduce_pytorch, device):
    rng = random.Random(seed)
    setup = random_setup(rng, dtypes_of(device))
    ours, theirs = (Side(setup, mezzo, reproduce_pytorch, device) for mezzo in (True, False))
    counts = collections.Counter()
    trace = [setup]
    program = [call for _ in range(rng.randint(3, 14)) for call in random_call(rng, setup)]
    if rng.random() < 0.7:
        program.insert(0, ("scale", torch.ones([])))
    for call in program:
        trace.append(call)
        name = call[0]
        if name == "load":
            call = (name, theirs.saved if theirs.saved is not None else {})  # either side's state fits both
        if name == "resume" and theirs.scaler.state_dict().get("scale", 1.0) <= 0:
            continue  # mezzo refuses a scale of 0, as `load` asserts
        is_one = name == "update" and isinstance(call[-1], torch.Tensor) and call[-1].numel() == 1 and not call[-1].requires_grad
        if device == "cuda" and is_one and refused(theirs, call):
            continue  # mezzo clamps a scale that is on the device, and does not read it
        if refused(theirs, call):
            assert outcome(ours, call)[0] == "ValueError", trace
            counts["refused"] += 1
        elif name == "step" and setup["optimizers"][call[1]][0] in DEVICE_KINDS and unchecked(theirs, call[1]):
            assert outcome(ours, call)[0] == "RuntimeError", trace
            counts["fused without gradients"] += 1
        else:
            states = theirs.scaler._per_optimizer_states if theirs.scaler.is_enabled() else {}
            key = id(theirs.optimizers[call[1]]) if name == "step" else None
            stage = states[key]["stage"] if key in states else OptState.READY
            our_kind, our_value = outcome(ours, call)
            their_kind, their_value = outcome(theirs, call)
            assert our_kind == their_kind, (trace, our_value, their_value)
            if our_kind == "returned":
                assert our_value == their_value, (trace, our_value, their_value)
                counts[name, our_value if name == "step" else "returned"] += 1
            else:
                counts[name, str(their_value)[:40]] += 1
                if str(their_value) == "No inf checks were recorded for this optimizer.":
                    theirs.scaler._per_optimizer_states[key]["stage"] = stage  # D5
        assert ours.state() == theirs.state(), trace
    return counts


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reproduce_pytorch", [True, False])
def test_random_programs_give_what_pytorch_gives(reproduce_pytorch, device):
    DocumentedGradScaler.differences.clear()
    total = collections.Counter()
    for seed in range(PROGRAMS[device]):
        total += run(seed, reproduce_pytorch, device)
    print(sorted(total.items(), key=str), DocumentedGradScaler.differences)
    # The programs went everywhere they should.
    for seen in [
        ("step", True), ("step", False), ("unscale_", "returned"), ("update", "returned"), ("load", "returned"),
        ("resume", "returned"), ("scale", "returned"), "refused", "fused without gradients",
        ("step", "No inf checks were recorded for this opt"),
        ("step", "step() has already been called since the"),
        ("step", "Attempting to unscale FP16 gradients."),
        ("step", "Attempted step but _scale is None.  This"),
        ("unscale_", "Attempting to unscale FP16 gradients."),
        ("unscale_", "unscale_() is being called after step()."),
        ("unscale_", "unscale_() has already been called on th"),
        ("update", "No inf checks were recorded prior to upd"),
        ("load", "The source state dict is empty, possibly"),
    ]:
        assert total[seen] >= 10, (seen, total[seen])
    if not reproduce_pytorch:
        for difference in ["D1_min_scale", "D2", "D3"]:
            assert DocumentedGradScaler.differences[difference] >= {"cpu": 10, "cuda": 2}[device], difference
        assert DocumentedGradScaler.differences["D1"] == 0, "min_scale keeps every reciprocal finite"


def test_options_are_checked_where_pytorch_checks_them():
    for bad in [dict(growth_factor=1.0), dict(backoff_factor=1.0)]:
        with pytest.raises(AssertionError):
            torch.amp.GradScaler("cpu", **bad)
        with pytest.raises(ValueError):
            mezzo.GradScaler("cpu", **bad)


def test_a_state_of_pytorch_loads_into_mezzo_and_back():
    theirs = torch.amp.GradScaler("cpu", init_scale=12.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7)
    ours = mezzo.GradScaler("cpu")
    ours.load_state_dict(theirs.state_dict())
    assert ours.state_dict() == theirs.state_dict()
    back = torch.amp.GradScaler("cpu")
    back.load_state_dict(ours.state_dict())
    assert back.state_dict() == theirs.state_dict()
    assert {k: type(v) for k, v in ours.state_dict().items()} == {k: type(v) for k, v in theirs.state_dict().items()}


class Readings(TorchDispatchMode):
    """Notes what operations of PyTorch were given one of some tensors, in mezzo's too."""

    def __init__(self, tensors):
        super().__init__()
        self.places, self.names = {tensor.data_ptr() for tensor in tensors}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "mezzo":
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **(kwargs or {}))
        given = [tensor for arg in args for tensor in (arg if isinstance(arg, (list, tuple)) else [arg])]
        if any(isinstance(tensor, torch.Tensor) and tensor.data_ptr() in self.places for tensor in given):
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale, check", [(1024.0, "_amp_foreach_non_finite_check_and_unscale_"), (0.25, "_foreach_norm")])
def test_gradients_are_read_once_to_check_them(scale, check, device):
    """Also if unscaling makes them larger and the result must be finite. On a GPU that is always possible: the CPU does
    not know the values."""
    check = "_foreach_norm" if device == "cuda" else check
    parameter = torch.ones(10, device=device, requires_grad=True)
    optimizer, scaler = torch.optim.SGD([parameter], lr=0.1, fused=True), mezzo.GradScaler(device, init_scale=scale)
    scaler.scale(parameter.sum()).backward()
    with Readings([parameter.grad]) as readings:
        assert scaler.step(optimizer).stepped()
    assert readings.names == [check, "_fused_sgd_"]
