# mypy: disable-error-code="no-any-return"
"""Automatic mixed precision: torch.amp's names over mezzo's C++ core."""

import functools
import inspect
import json
import math
import numbers
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from mezzo import _library
from mezzo._errors import checked, int64
from mezzo.optim import Optimizer, view_of

__all__ = ["CastLog", "FiniteTracer", "GradScaler", "GradientExponents", "MasterWeights", "NonFiniteOp", "OpPolicy", "ScaleAdvice",
           "StepResult", "TracedTensor", "advise_scale", "autocast"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_AnyScope = TypeVar("_AnyScope", bound="_Scope")


def _new(name: str, *arguments: Any) -> Any:
    """An object of the class torch.classes.mezzo.`name`."""
    _library.load()
    return getattr(torch.classes.mezzo, name)(*arguments)


class OpPolicy:
    """Says for every operation what autocast does to its arguments: an op list to change, for `autocast`.

    Policies are PyTorch's words: "lower_precision_fp", "fp32", "fp32_set_opt_dtype", "fp32_append_dtype", "promote", "banned";
    and "untouched". An empty policy lists nothing: every operation runs in the dtype of its arguments.

    Example:
        >>> policy = mezzo.OpPolicy.preset("cuda").set("layer_norm", "untouched").set("gelu", "fp32")
        >>> with mezzo.autocast("cuda", torch.float16, policy=policy):
        ...     loss = loss_fn(model(inputs), targets)
    """

    def __init__(self) -> None:
        self._policy = _new("OpPolicy", None)

    @classmethod
    def preset(cls, name: str) -> "OpPolicy":
        """A policy to start from.

        Args:
            name: "cuda" and "cpu" are PyTorch's own lists of these devices, to be used with any device. "cuda_2020" has the 18 ops
                in lower precision of the first torch.cuda.amp. "norms_stay_low" is "cuda" without float32 forced on layer_norm
                and rms_norm. "masks_fp32" is "cuda" with masked_fill in float32.

        Raises:
            ValueError: any other name.
        """
        policy = cls()
        policy._policy = _new("OpPolicy", checked(name, str, "name"))
        return policy

    def set(self, op: str, policy: str) -> "OpPolicy":
        """Sets the policy of one op.

        Args:
            op: as the dispatcher spells it: "mm", "pow.Tensor_Scalar", "mylib::my_op". Without a namespace, of aten.
            policy: one of the words above.

        Returns:
            This policy, so that calls chain.

        Raises:
            ValueError: an op that does not exist or that writes to its arguments; a policy that the op cannot have.
        """
        self._policy.set(checked(op, str, "op"), checked(policy, str, "policy"))
        return self

    def get(self, op: str) -> str:
        """The policy of one op; "untouched" if it has none.

        Raises:
            ValueError: an op that does not exist.
        """
        return self._policy.get(checked(op, str, "op"))

    def lines(self) -> list[tuple[str, str]]:
        """All ops and their policies except "untouched" ones, by policy, then by name."""
        return self._policy.lines()

    def __getstate__(self) -> dict[str, Any]:
        return {"lines": self.lines()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._policy = _new("OpPolicy", None)
        for op, policy in state["lines"]:
            self.set(op, policy)


class CastLog:
    """Records what autocast casts: which op, by which policy, from and to which dtype, where, how often and how many bytes.

    Changes no number. Several threads may write to one log.

    Args:
        model: names the modules in the log, by forward hooks that are there while the log records.

    Example:
        >>> log = mezzo.CastLog(model)
        >>> with mezzo.autocast("cpu", torch.bfloat16, log=log):
        ...     model(inputs)
        >>> print(log.to_table())
    """

    def __init__(self, model: torch.nn.Module | None = None) -> None:
        self._log = _new("CastLog")
        self._model = None if model is None else checked(model, torch.nn.Module, "model")

    def entries(self) -> list[dict[str, Any]]:
        """One dict for each kind of cast, most bytes first.

        Keys: op, policy, from, to, module; count, of tensors that were converted; bytes, of the converted copies; cached, how
        often a kept copy was used again.
        """
        return json.loads(self._log.to_json())

    def to_table(self) -> str:
        """Lines of text: a heading first, the sum last."""
        return self._log.to_table()

    def to_json(self) -> str:
        """`entries` as JSON."""
        return self._log.to_json()

    def clear(self) -> None:
        """Forgets all casts."""
        self._log.clear()

    def __reduce__(self) -> Any:
        raise TypeError("a CastLog cannot be copied or pickled; keep its entries()")

    @overload
    def dry_run(self, device_type: str, dtype: torch.dtype, function: None = None, *, policy: OpPolicy | None = None) -> "_Scope": ...

    @overload
    def dry_run(self, device_type: str, dtype: torch.dtype, function: Callable[[], Any], *, policy: OpPolicy | None = None) -> Any: ...

    def dry_run(self, device_type: str, dtype: torch.dtype, function: Callable[[], Any] | None = None, *,
                policy: OpPolicy | None = None) -> Any:
        """Records the casts of one forward pass, without gradients. Random numbers are put back afterwards.

        Put a model with batch norms into eval mode.

        Args:
            device_type: "cuda" or "cpu".
            dtype: torch.float16 or torch.bfloat16.
            function: runs the forward pass. None: the call returns a context manager for it.
            policy: None: that of the enclosing region, or else PyTorch's own.

        Returns:
            What `function` returned; without one, the context manager.
        """
        scope = _Scope(self._model, "CastDryRun", self._log, _type_of(device_type), checked(dtype, torch.dtype, "dtype"), _policy_of(policy))
        if function is None:
            return scope
        with scope:
            return function()


def _policy_of(policy: OpPolicy | None) -> Any:
    return None if policy is None else checked(policy, OpPolicy, "policy")._policy


def _type_of(device: str | torch.device) -> str:
    return torch.device(checked(device, (str, torch.device), "device_type")).type


class _Scope:
    """A scope of the C++ side as a context manager, which may be entered again and by several threads."""

    def __init__(self, model: torch.nn.Module | None, *arguments: Any) -> None:
        self._arguments = arguments
        self._names = None if model is None else _ModuleNames(model)
        self._open = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=threading.local())

    def _begin(self) -> Any:
        return _new(*self._arguments)

    def __enter__(self: _AnyScope) -> _AnyScope:
        scopes = self._open.__dict__.setdefault("scopes", [])
        scopes.append(self._begin())
        if self._names is not None:
            self._names.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._names is not None:
            self._names.end()
        self._open.scopes.pop().close()


class autocast(_Scope):
    """Runs a block or a function under autocast: torch.autocast, also with an op policy and a log of casts.

    Nests with torch.autocast in any order, since both set the same state of the thread. A policy or a log holds in its block and
    thread only, and in nested blocks without one.

    Args:
        device_type: "cuda", "cpu" or another type with autocast. Tensors on other devices are not touched.
        dtype: torch.float16 or torch.bfloat16. None: the current default of the device type, as in torch.autocast.
        enabled: False makes a full-precision block inside an autocast one.
        cache_enabled: whether casts of float32 parameters are kept until the outermost block ends. None keeps the setting.
        policy: the op list. None: that of the enclosing block, or else PyTorch's own.
        log: where casts are recorded. None: that of the enclosing block, if any.

    Raises:
        RuntimeError: an unknown device type.
        ValueError: on entry, for a dtype or a device type that autocast cannot use; torch.autocast switches itself off there.

    Example:
        >>> with mezzo.autocast("cuda", torch.float16):
        ...     loss = loss_fn(model(inputs), targets)
        >>> scaler.scale(loss).backward()
    """

    def __init__(self, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None,
                 policy: OpPolicy | None = None, log: CastLog | None = None) -> None:
        super().__init__(None if log is None else checked(log, CastLog, "log")._model)
        self.device, self.dtype = _type_of(device_type), None if dtype is None else checked(dtype, torch.dtype, "dtype")
        self.enabled, self.cache_enabled = bool(enabled), None if cache_enabled is None else bool(cache_enabled)
        self.policy, self.log = None if policy is None else checked(policy, OpPolicy, "policy"), log

    def _begin(self) -> Any:
        dtype = torch.get_autocast_dtype(self.device) if self.dtype is None else self.dtype
        return _new("AutocastRegion", self.device, dtype, self.enabled, self.cache_enabled, _policy_of(self.policy),
                    None if self.log is None else self.log._log)

    def __call__(self, function: _Function) -> _Function:
        """Makes each call of `function` run under autocast, on any thread."""
        if not callable(function):
            raise TypeError(f"autocast(...)(function) needs a function, got {type(function).__name__}. Use autocast(...) in a "
                            "with statement, or as a decorator.")

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run  # type: ignore[return-value]


class _ModuleNames:
    """Tells the C++ side which module runs, by forward hooks that are there from the first `begin` to the last `end`."""

    _lock = threading.Lock()
    _running = threading.local()  # of each thread: the modules that run, outermost first, with their names and scopes

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._users = 0
        self._handles: list[Any] = []

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            for name, module in self._model.named_modules() if self._users == 1 else ():
                self._handles.append(module.register_forward_pre_hook(functools.partial(self._enter, name), prepend=True))
                self._handles.append(module.register_forward_hook(self._leave, always_call=True))

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            while self._users == 0 and self._handles:
                self._handles.pop().remove()

    def _enter(self, name: str, module: torch.nn.Module, inputs: Any) -> None:
        running = self._running.__dict__.setdefault("modules", [])
        outer = running[-1][1] if running else ""
        step = "" if name == outer else name.removeprefix(outer + ".") if outer else name
        running.append((module, name, _new("ModuleScope", step)))

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        running = self._running.__dict__.setdefault("modules", [])
        while any(entered is module for entered, _, _ in running):  # not if it began before the hooks
            entered, _, scope = running.pop()
            scope.close()
            if entered is module:
                return


@dataclass(frozen=True)
class TracedTensor:
    """A tensor as an operation saw it.

    Attributes:
        name: of the argument, as in the op's schema; "output" for a result.
        shape, dtype: of the tensor.
        min, max: of the finite values; NaN if there are none.
        num_inf, num_minus_inf, num_nan: how many values are +inf, -inf and NaN.
    """

    name: str
    shape: list[int]
    dtype: torch.dtype
    min: float
    max: float
    num_inf: int
    num_minus_inf: int
    num_nan: int


@dataclass(frozen=True)
class NonFiniteOp:
    """The operation with which inf or NaN began.

    Attributes:
        produced_here: False if an argument held NaN or +inf already, and no op that could be seen had made it.
        op: "aten::log", or a backward node that received bad gradients.
        in_backward: whether it ran in backward.
        module: name of the module that ran; in backward, of the forward op. Empty without a model.
        backward_node: "LogBackward0"; empty in forward.
        forward_op: in backward, the op whose gradient this is, if that is known.
        source: of a copy or cast, the op that computed the values. Empty if none was seen.
        inputs, outputs: the op's tensors.
    """

    produced_here: bool
    op: str
    in_backward: bool
    module: str
    backward_node: str
    forward_op: str
    source: str
    inputs: list[TracedTensor]
    outputs: list[TracedTensor]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def _of(cls, entries: dict[str, Any]) -> "NonFiniteOp":
        def tensors(name: str) -> list[TracedTensor]:
            return [TracedTensor(**{**tensor, "dtype": getattr(torch, tensor["dtype"])}) for tensor in entries[name]]

        return cls(**{**entries, "inputs": tensors("inputs"), "outputs": tensors("outputs")})


class FiniteTracer(_Scope):
    """Watches every operation of its block, forward and backward, for results with inf or NaN.

    Finds the op that makes NaN of inputs without NaN, or inf of finite ones. Changes no value, random number or gradient. Traces
    its own thread and the threads of autograd that work for it. The innermost of nested tracers traces. Waits for the device at
    each op until it has found one.

    Args:
        model: names modules, by forward hooks that are there meanwhile.
        ignore_ops: ops to pass over, with or without overload: "aten::log", "aten::div.Tensor".

    Example:
        >>> with mezzo.FiniteTracer(model) as tracer:
        ...     loss = loss_fn(model(inputs), targets)
        ...     tracer.check()
        ...     loss.backward()
        ...     tracer.check()
    """

    def __init__(self, model: torch.nn.Module | None = None, *, ignore_ops: Sequence[str] = ()) -> None:
        checked(ignore_ops, (list, tuple), "ignore_ops")
        names = [checked(op, str, f"ignore_ops[{i}]") for i, op in enumerate(ignore_ops)]
        super().__init__(None if model is None else checked(model, torch.nn.Module, "model"), "FiniteTracer", names)
        self._tracer: Any = None

    def _begin(self) -> Any:
        self._tracer = super()._begin()
        return self._tracer

    def __getstate__(self) -> dict[str, Any]:
        if self._tracer is not None:
            raise TypeError("a FiniteTracer that has traced cannot be copied or pickled; keep its first")
        return super().__getstate__()

    @property
    def first(self) -> NonFiniteOp | None:
        """The first op found so far; also after the block."""
        entries = None if self._tracer is None else self._tracer.first()
        return None if entries is None else NonFiniteOp._of(entries)

    def check(self) -> None:
        """Raises if an op was found.

        Raises:
            RuntimeError: with the op's description.
        """
        first = self.first
        if first is not None:
            raise RuntimeError(f"FiniteTracer: {first}")


class MasterWeights:
    """Float32 master copies of a model that is kept in half precision (Micikevicius et al. 2017, section 3.1).

    Casts the model's parameters in place. Make the masters before the first backward and give them to an optimizer. The
    optimizers of mezzo.optim take the model's half gradients, and round their updates into the model in the same pass:

        >>> masters = mezzo.MasterWeights(model, torch.float16)
        >>> optimizer = mezzo.optim.AdamW(masters.named_parameters(), lr=3e-5)
        >>> scaler.scale(loss_fn(model(inputs.half()).float(), targets)).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> optimizer.zero_grad()

    With another optimizer, call `accumulate_gradients()` before the step and `copy_to_model()` after it; with torch.amp.GradScaler,
    `accumulate_gradients()` after backward. To sum gradients of
    several backwards in float32, call `accumulate_gradients()` after each. After `scaler.unscale_(optimizer)`, clip `parameters()`.

    A parameter with several names has one master. A frozen one is half in the model, and keeps its float32 values for
    `state_dict` and `to_float32`. Buffers keep their dtype.

    Args:
        model: a module, or (name, parameter) pairs. Give a module if it has BatchNorms.
        dtype: torch.float16 or torch.bfloat16.
        keep_norms_fp32: norms stay float32 in the model. Norms with running statistics, such as BatchNorm, always do.

    Raises:
        ValueError: another dtype; a parameter that is not float32, that has a gradient, or a finite value that overflows `dtype`.
            Nothing has changed then.
    """

    def __init__(self, model: torch.nn.Module | Iterable[tuple[str, Tensor]], dtype: torch.dtype, *,
                 keep_norms_fp32: bool = False) -> None:
        if isinstance(model, torch.nn.Module):
            named = [(f"{path}.{name}" if path else name, parameter, _norm_role(module, parameter))
                     for path, module in model.named_modules(remove_duplicate=False)
                     for name, parameter in module._parameters.items() if parameter is not None]
        else:
            named = [(checked(name, str, "the name of a parameter"), checked(parameter, Tensor, name), _NormRole.unknown)
                     for name, parameter in model]
        names, parameters, roles = map(list, zip(*named)) if named else ([], [], [])
        self._weights = _new("MasterWeights", names, parameters, roles, checked(dtype, torch.dtype, "dtype"), bool(keep_norms_fp32))
        self._masters: list[tuple[str, Tensor]] = []
        for name, master, half_copy in self._weights.masters():
            if half_copy is not None:
                master.half_copy = half_copy
            self._masters.append((name, master))

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """What to train: float32 tensors with their names in the model.

        A norm that stays float32 is the model's own parameter. Frozen parameters are left out.
        """
        return list(self._masters)

    def parameters(self) -> list[Tensor]:
        """The same without names, to clip or inspect gradients."""
        return [master for _, master in self._masters]

    def accumulate_gradients(self) -> None:
        """Adds the model's gradients to the masters' in float32 and drops the model's."""
        self._weights.accumulate_gradients()

    def copy_to_model(self) -> None:
        """Rounds the masters into the model."""
        self._weights.copy_to_model()

    def to_float32(self) -> None:
        """Makes the model float32 again, with the values and the memory of the masters, and drops gradients.

        Ends the mode: for more training, make a new optimizer.
        """
        self._weights.to_float32()

    def state_dict(self) -> dict[str, Tensor]:
        """The float32 weights by name, sharing memory: the model in full precision."""
        return self._weights.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Takes over a `state_dict`, or the weights of a float32 model, and rounds them into the model.

        Raises:
            ValueError: an entry too many or missing, of another shape, of another dtype than float32, or with a value that
                overflows. Nothing has changed then.
        """
        self._weights.load_state_dict({name: checked(value, Tensor, f"entry {name!r}") for name, value in state_dict.items()})

    def __reduce__(self) -> Any:
        raise TypeError("a MasterWeights cannot be copied or pickled; save its state_dict()")


class _NormRole:
    """mezzo::NormRole."""

    unknown, none, norm, norm_with_statistics = range(4)


def _norm_role(module: torch.nn.Module, parameter: Tensor) -> int:
    """Whether a module is a norm: by its name, such as LayerNorm, RMSNorm, BatchNorm2d."""
    is_norm = re.search(r"Norm(\dd)?$", type(module).__name__) and all(p is None or p.dim() <= 1 for p in module._parameters.values())
    if not is_norm:
        return _NormRole.none if type(module).__module__.startswith("torch.nn.") else _NormRole.unknown
    has_statistics = any(buffer is not None and buffer.is_floating_point() and buffer.shape == parameter.shape
                         for buffer in module._buffers.values())
    return _NormRole.norm_with_statistics if has_statistics else _NormRole.norm


class StepResult:
    """What became of one `GradScaler.step`.

    Attributes:
        returned: the result of the optimizer's `step`; None if it was not called.
    """

    def __init__(self, result: Any, returned: Any, skipped: Tensor | None = None) -> None:
        self._result = result  # None of a disabled scaler, whose optimizer says if it `skipped`
        self._skipped = skipped
        self.returned = returned

    def __getstate__(self) -> dict[str, Any]:
        if self._result is not None:
            raise TypeError("a StepResult cannot be copied or pickled; keep its stepped()")
        return self.__dict__

    def stepped(self) -> bool:
        """Whether the parameters were updated. Waits for the device, if the optimizer decided there."""
        if self._result is None:
            return self._skipped is None or self._skipped.item() == 0
        return self._result.stepped()

    @property
    def found_inf(self) -> Tensor | None:
        """1.0 if the step was skipped for an inf or NaN, else 0.0: 0-dim, float32, on the scale's device.

        None if nothing was checked. Never waits for the device.
        """
        return self._skipped if self._result is None else self._result.found_inf()


class GradScaler:
    """Scales losses so that small float16 gradients do not vanish, and skips the steps whose gradients overflowed.

    Has the names, defaults, numbers and state_dict of torch.amp.GradScaler, and drives any optimizer that it drives. The fused
    optimizers of torch.optim and all of mezzo.optim decide on the device: no call waits for it. Differences:

    - `step` returns a StepResult, which tells a skipped step from an optimizer that returns None.
    - The scale cannot fall to 0 or rise to inf.
    - A gradient that overflows when it is divided by the scale is found.
    - The scale also grows if `growth_interval` was set below the count of good steps.
    - `step` refuses every closure; PyTorch takes a positional one.
    - A `step` that fails because no parameter has a gradient leaves the optimizer's stage as it was.
    - Options out of their range are refused.

    Args:
        device: "cuda" without a CUDA device warns and disables the scaler, as in PyTorch.
        init_scale: the scale before the first overflow or growth.
        growth_factor: multiplies the scale after `growth_interval` steps without overflow. Above 1.
        backoff_factor: multiplies the scale after an overflow. Between 0 and 1.
        growth_interval: steps in a row without overflow before the scale grows.
        enabled: False: every call passes its arguments through, and `step` simply steps.
        static_scale: the scale never changes by itself. Overflowed steps are skipped.
        min_scale: the scale never falls below this. Default: the smallest normal float32.
        max_scale: the scale never grows above this. Default: the largest float32.
        allow_no_gradients: `step` passes over an optimizer without gradients, which is an error otherwise.
        hysteresis: overflows in a row before the scale backs off.
        max_consecutive_skips: `step` raises at this number of skipped iterations in a row and names the gradients that overflowed.
            0: never. An optimizer that steps on an accelerator is asked once in this number of steps.
        reproduce_pytorch: computes the very numbers of torch.amp.GradScaler, defects included.

    Raises:
        ValueError: an option out of its range.
    """

    def __init__(self, device: str | torch.device = "cuda", init_scale: float = 65536.0, growth_factor: float = 2.0, backoff_factor: float = 0.5,
                 growth_interval: int = 2000, enabled: bool = True, *, static_scale: bool = False,
                 min_scale: float = torch.finfo(torch.float32).tiny, max_scale: float = torch.finfo(torch.float32).max,
                 allow_no_gradients: bool = False, hysteresis: int = 1, max_consecutive_skips: int = 0,
                 reproduce_pytorch: bool = False) -> None:
        if enabled and _type_of(device) == "cuda" and not torch.cuda.is_available():
            warnings.warn("GradScaler: there is no CUDA device, so the scaler is disabled. Pass the device that the model is on.",
                          stacklevel=2)
            enabled = False
        self._options = (float(init_scale), float(growth_factor), float(backoff_factor), int64(growth_interval), bool(enabled),
                         bool(static_scale), float(min_scale), float(max_scale), bool(allow_no_gradients), int64(hysteresis),
                         int64(max_consecutive_skips), bool(reproduce_pytorch))
        self._begin()

    def _begin(self) -> None:
        self._scaler = _new("GradScaler", *self._options)
        # Optimizers since the last update, by their ids, and their C++ objects.
        self._views: dict[int, tuple[torch.optim.Optimizer, Any]] = {}

    def scale(self, outputs: Any) -> Any:
        """Multiplies outputs by the scale.

        Args:
            outputs: a tensor, or tensors in lists, tuples, dicts and other structures that torch.utils._pytree knows, nested; None
                stays None. Other iterables become lazy iterators; subclasses of list and tuple keep their class.

        Returns:
            The same structure. A 0-dim float16 or bfloat16 loss becomes float32.

        Raises:
            ValueError: something else.
        """
        if not self.is_enabled():
            return outputs
        leaves, structure = tree_flatten(outputs)
        if len(leaves) == 1 and leaves[0] is outputs and not isinstance(outputs, Tensor):
            if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
                scaled = map(self.scale, outputs)
                return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, Tensor):
                raise ValueError(f"GradScaler: scale() takes tensors, nested in lists, tuples and dicts, got {type(leaf).__name__}")
        tensors = iter(self._scaler.scale([leaf for leaf in leaves if leaf is not None]))
        return tree_unflatten([None if leaf is None else next(tensors) for leaf in leaves], structure)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of `optimizer` by the scale, to clip or inspect them before `step`.

        Gradients of float32 master weights are the masters' then. Never waits for the device.

        Raises:
            RuntimeError: before the first `scale`, twice, or after `step`.
            ValueError: a float16 gradient. No gradient has changed then.
        """
        if self.is_enabled():
            self._scaler.unscale_(self._view(optimizer))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> StepResult:
        """Unscales unless `unscale_` has, then steps unless an inf or NaN was found.

        Waits for the device to decide, except for optimizers that decide there.

        Args:
            optimizer: any optimizer of PyTorch's protocol.
            args, kwargs: for `optimizer.step`.

        Raises:
            RuntimeError: before the first `scale`; twice; if no parameter has a gradient; for a closure; for an optimizer that takes
                the scaler as `grad_scaler`; for the `max_consecutive_skips`-th skip in a row.
        """
        if not self.is_enabled():
            returned = optimizer.step(*args, **kwargs)
            return StepResult(None, returned, optimizer.skipped if isinstance(optimizer, Optimizer) else None)
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError("GradScaler: step() takes no closure. Compute gradients before it, or disable the scaler.")
        decides_itself = getattr(optimizer, "_step_supports_amp_scaling", False) and not isinstance(optimizer, Optimizer)
        if decides_itself and "grad_scaler" in inspect.signature(optimizer.step).parameters:
            raise RuntimeError(f"GradScaler: {type(optimizer).__name__}.step takes a grad_scaler, which PyTorch has deprecated. Let it "
                               "read its attributes grad_scale and found_inf, or use torch.amp.GradScaler.")
        view = self._view(optimizer)
        result = self._scaler.step(view)
        return StepResult(result, self._take_step(optimizer, view, args, kwargs) if view.take_request() else None)

    def _take_step(self, optimizer: torch.optim.Optimizer, view: Any, args: Any, kwargs: Any) -> Any:
        own = getattr(optimizer, "grad_scale", None)  # set by the user, for a second scale beside this one
        given: dict[str, Any] = {}
        if isinstance(optimizer, Optimizer) and own is None:
            given = {"_measured": view.measured()}
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            scale = view.grad_scale()
            given = {"grad_scale": scale if own is None else own if scale is None else own * scale, "found_inf": view.found_inf()}
        for name, value in given.items():
            setattr(optimizer, name, value)
        try:
            return optimizer.step(*args, **kwargs)
        except BaseException:
            self._scaler.undo_step(view)
            raise
        finally:
            for name in given:
                delattr(optimizer, name)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Ends the iteration: adapts the scale to the overflows found since the last `update`.

        Args:
            new_scale: sets the scale instead; a number, or a 1-element tensor that requires no gradient.

        Raises:
            RuntimeError: before the first `scale`, or if nothing was checked.
            ValueError: a new scale that is not positive and finite, or not between `min_scale` and `max_scale`.
        """
        if new_scale is None:
            self._scaler.update()
        elif isinstance(new_scale, Tensor):
            self._scaler.set_scale_tensor(new_scale)
        else:
            self._scaler.set_scale(float(new_scale))
        self._views.clear()

    def get_scale(self) -> float:
        """The current scale; 1.0 if disabled. Waits for the device."""
        return self._scaler.get_scale()

    def get_growth_tracker(self) -> int:
        """Steps without overflow since the scale last changed; 0 if disabled. Waits for the device."""
        return self._scaler.get_growth_tracker()

    def get_skipped_steps(self) -> int:
        """Iterations that were skipped since the first `scale`; 0 if disabled. Waits for the device."""
        return self._scaler.get_skipped_steps()

    def get_growth_factor(self) -> float:
        """The factor of the scale when it grows."""
        return self._scaler.get_growth_factor()

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets it, from the next `update` on; a ValueError unless it is above 1."""
        self._scaler.set_growth_factor(float(new_factor))

    def get_backoff_factor(self) -> float:
        """The factor of the scale after an overflow."""
        return self._scaler.get_backoff_factor()

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets it, from the next `update` on; a ValueError unless it is between 0 and 1."""
        self._scaler.set_backoff_factor(float(new_factor))

    def get_growth_interval(self) -> int:
        """Steps in a row without overflow before the scale grows."""
        return self._scaler.get_growth_interval()

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets it, from the next `update` on; a ValueError unless it is at least 1."""
        self._scaler.set_growth_interval(int64(new_interval))

    def is_enabled(self) -> bool:
        """Whether the scaler scales."""
        return self._options[4]

    def state_dict(self) -> dict[str, float | int]:
        """PyTorch's entries: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker.

        With hysteresis, also _hysteresis_tracker, which PyTorch passes over. Empty if disabled. Call it after `update`.
        """
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, float | int]) -> None:
        """Takes over a state of this class or of torch.amp.GradScaler. Does nothing if disabled.

        Raises:
            RuntimeError: an empty state.
            ValueError: a missing entry, or one out of its range.
        """
        for key, value in checked(state_dict, Mapping, "state_dict").items():
            checked(key, str, "a key of the state_dict")
            if not isinstance(value, numbers.Real):  # which numpy's are, too
                raise TypeError(f"entry {key!r} of the state_dict is a {type(value).__name__}, expected a number")
        integers = {key: int(value) for key, value in state_dict.items() if isinstance(value, numbers.Integral) and -2**63 <= value < 2**63}
        self._scaler.load_state_dict({key: float(value) for key, value in state_dict.items() if key not in integers}, integers)

    def __getstate__(self) -> dict[str, Any]:
        if self._views:
            raise RuntimeError("GradScaler: copy or pickle it after update(), before the next unscale_() or step()")
        return {"options": self._options, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["options"]
        self._begin()
        if state["state"]:
            self.load_state_dict(state["state"])

    def _view(self, optimizer: torch.optim.Optimizer) -> Any:
        if id(optimizer) not in self._views:
            self._views[id(optimizer)] = optimizer, view_of(optimizer)
        return self._views[id(optimizer)][1]


@dataclass(frozen=True)
class GradientExponents:
    """How the magnitudes of some gradients are spread over the powers of two.

    Attributes:
        name: of the group of gradients.
        counts: counts[i] values have a magnitude from 2^(i - 149) to below 2^(i - 148). 277 entries.
        zeros, non_finite: how many are 0, and inf or NaN.
        largest: the largest finite magnitude.
        lost: share of the finite values other than 0 that float16 rounds to 0 at the scale.
        subnormal: share that float16 keeps with fewer than 11 bits at the scale.
        headroom: how often the scale could double before the largest exceeds 65504.
    """

    name: str
    counts: list[int]
    zeros: int
    non_finite: int
    largest: float
    lost: float
    subnormal: float
    headroom: float


@dataclass(frozen=True)
class ScaleAdvice:
    """Which loss scale suits some gradients in float16. As a string, a table.

    Attributes:
        recommended_scale: a power of two from 2^-24 to 2^24.
        needs_scale: whether float16 would lose more than one in a thousand at scale 1, in some group.
        objection: what speaks against the current scale, in one line; empty if nothing does.
        groups: the gradients, group by group.
    """

    recommended_scale: float
    needs_scale: bool
    objection: str
    groups: list[GradientExponents]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def advise_scale(gradients: torch.nn.Module | Mapping[str, Tensor | Sequence[Tensor]],
                 scale: float | GradScaler | torch.amp.GradScaler, *, unscaled: bool = False) -> ScaleAdvice:
    """Judges a loss scale by the gradients' largest value and by what float16 loses of the others.

    Recommends the largest power of two that leaves the largest gradient two doublings below 65504. Call it after backward, before
    `step`. Waits for the device once.

    Args:
        gradients: a module, whose modules are the groups; or tensors of any floating dtype by the name of their group.
        scale: the current scale, or its scaler, of mezzo or PyTorch.
        unscaled: whether the gradients were divided by it already, as by `unscale_`.

    Raises:
        ValueError: a scale that is not positive and finite, or a gradient that is not floating.
    """
    current = scale.get_scale() if isinstance(scale, (GradScaler, torch.amp.GradScaler)) else float(scale)
    if not 0 < current < math.inf:
        raise ValueError(f"scale must be positive and finite, got {current}")
    groups: dict[str, list[Tensor]] = {}
    if isinstance(gradients, torch.nn.Module):
        for name, parameter in gradients.named_parameters():
            if parameter.grad is not None:
                groups.setdefault(name.rpartition(".")[0], []).append(parameter.grad)
    else:
        for name, some in checked(gradients, (torch.nn.Module, Mapping), "gradients").items():
            groups[str(name)] = [checked(one, Tensor, f"a gradient of {name}") for one in ([some] if isinstance(some, Tensor) else some)]
    advice = _new("ScaleAdvice", list(groups), list(groups.values()), 1.0 if unscaled else current, current)
    return ScaleAdvice(advice.recommended_scale(), advice.needs_scale(), advice.objection(),
                       [GradientExponents(**group) for group in advice.groups()], advice.to_string())
