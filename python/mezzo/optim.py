# mypy: disable-error-code="no-any-return"
"""Optimizers of torch.optim that check, measure, unscale, clip and update in one step.

They are subclasses of PyTorch's, with its hyperparameters, state and state_dict. A step reads gradients at most twice and never
writes to them. With a scaler, mezzo's or torch.amp's, a step never waits for the device: it decides there whether to skip.
Parameters of float16 or bfloat16 have float32 moments, which PyTorch's have not.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mezzo import _library

_library.folder()  # raises UnsupportedTorch before an older torch.optim lacks something

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Muon", "Optimizer"]

_HALVES = (torch.float16, torch.bfloat16)
_DTYPES = (torch.float32, torch.float64, *_HALVES)


class Optimizer(torch.optim.Optimizer):
    """Base of mezzo's optimizers.

    Attributes:
        max_grad_norm: clips the gradients' total L2 norm to this. 0: the norm is not measured. Infinity: measured, never clipped.
        stochastic_rounding_seed: rounds bfloat16 parameters up or down at random, with this seed, so that updates below their
            precision count on average. None: rounds to nearest.
        grad_norm: norm of the true gradients at the last step, before clipping: 0-dim, float32, or float64 if a gradient is.
            None if it was not measured.
        skipped: 1.0 if the last step was skipped for an inf or NaN, else 0.0: 0-dim, float32. None if nothing was checked.
    """

    _step_supports_amp_scaling = True
    _takes_sparse_gradients = False
    max_grad_norm: float = 0.0
    stochastic_rounding_seed: int | None = None
    grad_norm: Tensor | None = None
    skipped: Tensor | None = None

    def _set_options(self, max_grad_norm: float, stochastic_rounding_seed: int | None, **switches: bool) -> None:
        if on := [name for name, is_on in switches.items() if is_on]:
            raise ValueError(f"{type(self).__name__} does not support {on[0]}=True; leave it out, or use torch.optim.{type(self).__name__}")
        if max_grad_norm is None or not max_grad_norm >= 0:
            raise ValueError(f"max_grad_norm must be at least 0, got {max_grad_norm}")
        if stochastic_rounding_seed is not None and not -2**63 <= operator.index(stochastic_rounding_seed) < 2**63:
            raise ValueError(f"stochastic_rounding_seed must be from -2**63 to 2**63 - 1, got {stochastic_rounding_seed}")
        self.max_grad_norm = float(max_grad_norm)
        self.stochastic_rounding_seed = stochastic_rounding_seed

    # What differs between the optimizers: the operator, its settings, and the state.

    def _operator(self) -> Callable[..., None]:
        raise NotImplementedError

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        raise NotImplementedError

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        raise NotImplementedError

    def _counts_steps(self, group: dict[str, Any]) -> bool:
        return True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        With `max_grad_norm`, does nothing if the norm is inf or NaN. Without, such gradients reach the weights, as in PyTorch,
        unless a scaler checks them.

        Args:
            closure: called first, with gradients enabled.

        Returns:
            The closure's result.

        Raises:
            RuntimeError: a sparse gradient that the optimizer does not take; torch.amp.GradScaler with gradients on half copies.
            ValueError: a gradient both on a parameter and on its half copy; a sparse gradient whose norm is to be measured.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        norm, found_inf, inv_scale, clip = self._measure()
        batches = self._batches()
        self.grad_norm, self.skipped = norm, found_inf
        for batch in batches:
            factors = [_on(batch.device, factor) for factor in (inv_scale, clip, found_inf)]
            self._operator()(batch.params, batch.gradients, batch.half_copies, batch.steps,
                             [slots[i] for i in range(len(batch.slots[0])) for slots in batch.slots], batch.lrs, batch.weight_decays,
                             batch.indices, self.stochastic_rounding_seed, *factors, batch.lr, *batch.settings)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch.optim's, also for half copies."""
        super().zero_grad(set_to_none)
        for half in map(_half_copy, self._parameters()):
            if half is not None and half.grad is not None:
                half.grad = None if set_to_none else half.grad.detach().zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim's.

        Raises:
            ValueError: also for a parameter of another dtype than float32, float64, float16 and bfloat16, and for one of float16
                with stochastic rounding. Nothing has changed then.
        """
        super().add_param_group(param_group)
        for parameter in self.param_groups[-1]["params"]:
            rounds_half = self.stochastic_rounding_seed is not None and parameter.dtype == torch.float16
            if parameter.dtype not in _DTYPES or rounds_half:
                self.param_groups.pop()
                raise ValueError(f"{type(self).__name__}: float16 is not rounded stochastically; use bfloat16" if rounds_half else
                                 f"{type(self).__name__} trains float32, float64, float16 and bfloat16, got {parameter.dtype}. "
                                 "Train the parameter with an optimizer of torch.optim")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over the state of an optimizer of this package, or of torch.optim's of the same name.

        Moments of float16 and bfloat16 parameters stay float32.
        """
        taken: list[dict[str, Any]] = []  # the results of the user's hooks
        hooks = [self.register_load_state_dict_pre_hook(lambda _, given: taken.append(given)),
                 self.register_load_state_dict_post_hook(lambda _: self._take_over(taken[0]), prepend=True)]
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def _take_over(self, state_dict: dict[str, Any]) -> None:
        """Gives a state that PyTorch has loaded the devices and dtypes of this package."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            if "fused" in group:
                group["fused"] = True
            for parameter, number in zip(group["params"], saved["params"]):
                for name, value in state_dict["state"].get(number, {}).items():
                    is_step = name == "step"  # a number in old states, of which PyTorch makes a tensor
                    value = self.state[parameter][name] if is_step else value
                    if isinstance(value, Tensor):
                        self.state[parameter][name] = value.to(parameter.device, torch.float32 if is_step else _moment_dtype(parameter))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"max_grad_norm": self.max_grad_norm,
                                         "stochastic_rounding_seed": self.stochastic_rounding_seed}

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.param_groups for parameter in group["params"])

    def _measure(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Norm, found_inf, 1 / scale and the clip factor of the step to come, as far as they are asked for."""
        measured = getattr(self, "_measured", None)  # by mezzo.GradScaler
        if measured is not None:
            return measured
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if found_inf is not None and any(half is not None and half.grad is not None for half in map(_half_copy, self._parameters())):
            raise RuntimeError(f"{type(self).__name__}: torch.amp.GradScaler does not check gradients on half copies. Call "
                               "accumulate_gradients() after backward, or use mezzo.GradScaler")
        found_inf = found_inf if isinstance(found_inf, Tensor) else None  # torch.amp.GradScaler's 0: it has seen no gradient
        if grad_scale is None and self.max_grad_norm == 0:
            return None, found_inf, None, None
        return view_of(self).measure(None if grad_scale is None else grad_scale.reshape(()), found_inf)

    def _gradient_of(self, parameter: Tensor) -> Tensor | None:
        gradient, half = parameter.grad, _half_copy(parameter)
        if half is not None and half.grad is not None:
            if gradient is not None:
                raise ValueError(f"{type(self).__name__}: a parameter and its half copy both have a gradient; call "
                                 "accumulate_gradients() after every backward, or after none")
            gradient = half.grad
        takes = (torch.strided, torch.sparse_coo) if self._takes_sparse_gradients else (torch.strided,)
        if gradient is not None and gradient.layout not in takes:
            raise RuntimeError(f"{type(self).__name__} does not support {gradient.layout} gradients. Train the parameter with "
                               "mezzo.optim.SGD")
        return gradient

    def _state_of(self, group: dict[str, Any], parameter: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The step count, if the optimizer counts, and the moments; they start at 0."""
        names = self._slots(group)
        counts = self.stochastic_rounding_seed is not None or self._counts_steps(group)
        if not names and not counts:
            return [], []
        state = self.state[parameter]
        if counts and "step" not in state:
            is_past_first = state.get("momentum_buffer") is not None  # of PyTorch's SGD, which does not count
            state["step"] = torch.full((), float(is_past_first), dtype=torch.float32, device=parameter.device)
        for name in names:
            if state.get(name) is None:
                state[name] = torch.zeros_like(parameter, dtype=_moment_dtype(parameter), memory_format=torch.preserve_format)
        return [state["step"]] if counts else [], [state[name] for name in names]

    def _batches(self) -> list["_Batch"]:
        """All parameters that have a gradient, by device and settings."""
        batches: dict[tuple[Any, ...], _Batch] = {}
        index = -1
        for group in self.param_groups:
            settings, weight_decay, lr = self._settings(group), float(group["weight_decay"]), group["lr"]
            lr_tensor = lr if isinstance(lr, Tensor) else None
            for parameter in group["params"]:
                index += 1
                gradient = self._gradient_of(parameter)
                if gradient is None:
                    continue
                key = (parameter.device, settings, id(lr_tensor))
                batch = batches.get(key)
                if batch is None:
                    batch = batches[key] = _Batch(parameter.device, settings, lr_tensor)
                steps, slots = self._state_of(group, parameter)
                batch.params.append(parameter)
                batch.gradients.append(gradient)
                batch.half_copies.append(_half_copy(parameter))
                batch.steps += steps
                batch.slots.append(slots)
                batch.lrs.append(1.0 if lr_tensor is not None else float(lr))
                batch.weight_decays.append(weight_decay)
                batch.indices.append(index)
        return list(batches.values())


class _Batch:
    """Parameters that one call of an operator updates, and its other arguments for each."""

    def __init__(self, device: torch.device, settings: tuple[Any, ...], lr: Tensor | None) -> None:
        self.device, self.settings = device, settings
        self.lr = None if lr is None else _on(device, lr.detach().to(torch.float64).reshape(()))
        self.params: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.half_copies: list[Tensor | None] = []
        self.steps: list[Tensor] = []
        self.slots: list[list[Tensor]] = []
        self.lrs: list[float] = []
        self.weight_decays: list[float] = []
        self.indices: list[int] = []


class Adam(Optimizer, torch.optim.Adam):
    """Adam (Kingma & Ba 2014), with the numbers of torch.optim.Adam(fused=True).

    Args:
        params: parameters, named parameters or groups, as torch.optim takes them.
        lr: learning rate; a 1-element tensor is read on its device, at each step.
        betas: decays of the first and second moment, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: added to the gradient, times the weight.
        amsgrad: divides by the largest second moment so far.
        maximize: steps along the gradient, not against it.
        max_grad_norm: see Optimizer.
        stochastic_rounding_seed: see Optimizer.
        foreach, fused: without effect; there is one implementation, a fused one.
        capturable, differentiable: must be False.

    Raises:
        ValueError: a hyperparameter out of its range, or a parameter that cannot be trained.
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
                 max_grad_norm: float = 0.0, stochastic_rounding_seed: int | None = None) -> None:
        self._set_options(max_grad_norm, stochastic_rounding_seed, capturable=capturable, differentiable=differentiable)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize, fused=True)

    def _operator(self) -> Callable[..., None]:
        return _library.load().adam_

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*map(float, group["betas"]), group["eps"], group["amsgrad"], group["decoupled_weight_decay"], group["maximize"])

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")


class AdamW(Optimizer, torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2017), with the numbers of torch.optim.AdamW(fused=True).

    Args:
        params, lr, betas, eps, amsgrad, maximize: see Adam.
        weight_decay: shrinks the weights themselves, by `lr * weight_decay`.
        foreach, fused, capturable, differentiable: see Adam.
        max_grad_norm, stochastic_rounding_seed: see Optimizer.

    Raises:
        ValueError: a hyperparameter out of its range, or a parameter that cannot be trained.
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
                 max_grad_norm: float = 0.0, stochastic_rounding_seed: int | None = None) -> None:
        self._set_options(max_grad_norm, stochastic_rounding_seed, capturable=capturable, differentiable=differentiable)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize, fused=True)

    _operator, _settings, _slots = Adam._operator, Adam._settings, Adam._slots


class LAMB(Optimizer, torch.optim.Adam):
    """LAMB (You et al. 2019, "Large batch optimization for deep learning", algorithm 2, with bias correction).

    Adam's direction plus weight decay, scaled per parameter to `lr` times the parameter's norm. The state is Adam's.

    Args:
        params, lr, betas, maximize: see Adam.
        eps: added to the root of the second moment.
        weight_decay: times the weight, added to the direction.
        max_grad_norm, stochastic_rounding_seed: see Optimizer.

    Raises:
        ValueError: a hyperparameter out of its range, or a parameter that cannot be trained.
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
                 eps: float = 1e-6, weight_decay: float = 0, *, maximize: bool = False, max_grad_norm: float = 0.0,
                 stochastic_rounding_seed: int | None = None) -> None:
        self._set_options(max_grad_norm, stochastic_rounding_seed)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize, fused=True)

    def _operator(self) -> Callable[..., None]:
        return _library.load().lamb_

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (*map(float, group["betas"]), group["eps"], group["maximize"])

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent, with the numbers of torch.optim.SGD(fused=True).

    Takes sparse gradients (COO). Without momentum and weight decay, a step then touches their rows alone.

    Args:
        params, lr, maximize: see Adam.
        momentum: 0 keeps no state.
        dampening: share of the gradient that is left out of the momentum, from the second step on.
        weight_decay: added to the gradient, times the weight.
        nesterov: needs momentum, and no dampening.
        foreach, fused, differentiable: see Adam.
        max_grad_norm, stochastic_rounding_seed: see Optimizer.

    Raises:
        ValueError: a hyperparameter out of its range, or a parameter that cannot be trained.
    """

    _takes_sparse_gradients = True

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, momentum: float = 0, dampening: float = 0,
                 weight_decay: float | Tensor = 0, nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None,
                 differentiable: bool = False, fused: bool | None = None, max_grad_norm: float = 0.0,
                 stochastic_rounding_seed: int | None = None) -> None:
        self._set_options(max_grad_norm, stochastic_rounding_seed, differentiable=differentiable)
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov,
                         maximize=maximize, fused=True)

    def _operator(self) -> Callable[..., None]:
        return _library.load().sgd_

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return group["momentum"], group["nesterov"], group["dampening"], group["maximize"]

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def _counts_steps(self, group: dict[str, Any]) -> bool:
        return group["momentum"] != 0 and group["dampening"] != 0


class Muon(Optimizer, torch.optim.Muon):
    """Muon (Jordan et al. 2024), with the numbers of torch.optim.Muon: for the weight matrices of hidden layers.

    Give biases, norms, embeddings and the output layer to AdamW.

    Args:
        params: matrices.
        lr: learning rate; see Adam.
        weight_decay: shrinks the weights themselves, by `lr * weight_decay`.
        momentum, nesterov: of the gradient that is orthogonalized.
        ns_coefficients: of the polynomial of a Newton-Schulz iteration.
        eps: least norm that a direction is divided by.
        ns_steps: Newton-Schulz iterations, 0 to 99.
        adjust_lr_fn: "original" multiplies the learning rate of a weight [A, B] by sqrt(max(1, A / B)); "match_rms_adamw" by
            0.2 sqrt(max(A, B)), so that learning rates and weight decays of AdamW fit. None: "original".
        max_grad_norm, stochastic_rounding_seed: see Optimizer.

    Raises:
        ValueError: a hyperparameter out of its range, or a parameter that is not a matrix.
    """

    def __init__(self, params: ParamsT, lr: float | Tensor = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
                 nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315), eps: float = 1e-7,
                 ns_steps: int = 5, adjust_lr_fn: str | None = None, *, max_grad_norm: float = 0.0,
                 stochastic_rounding_seed: int | None = None) -> None:
        self._set_options(max_grad_norm, stochastic_rounding_seed)
        if not 0 <= ns_steps < 100:
            raise ValueError(f"Muon: ns_steps must be 0 to 99, got {ns_steps}")
        super().__init__(params, lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps,  # type: ignore[arg-type]
                         adjust_lr_fn)

    def _operator(self) -> Callable[..., None]:
        return _library.load().muon_

    def _settings(self, group: dict[str, Any]) -> tuple[Any, ...]:
        return (group["momentum"], group["nesterov"], *group["ns_coefficients"], group["eps"], group["ns_steps"],
                group["adjust_lr_fn"] == "match_rms_adamw")

    def _slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _counts_steps(self, group: dict[str, Any]) -> bool:
        return False


def view_of(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer as the C++ side sees it: its parameters, and what its step does by itself."""
    _library.load()
    own = optimizer if isinstance(optimizer, Optimizer) else None
    parameters = [group["params"] for group in optimizer.param_groups]
    names = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    half_copies = list(map(_half_copy, own._parameters())) if own else []
    kind = 2 if own else int(getattr(optimizer, "_step_supports_amp_scaling", False))
    return torch.classes.mezzo.OptimizerView(type(optimizer).__name__, kind, parameters, names, half_copies,
                                             own.max_grad_norm if own else 0.0, own is not None and own._takes_sparse_gradients)


def _half_copy(parameter: Tensor) -> Tensor | None:
    """The model's float16 or bfloat16 parameter, if `parameter` is its float32 master (mezzo.MasterWeights)."""
    return getattr(parameter, "half_copy", None)


def _moment_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float32 if parameter.dtype in _HALVES else parameter.dtype


def _on(device: torch.device, tensor: Tensor | None) -> Tensor | None:
    """`tensor` on a device. Only a copy to the CPU is waited for."""
    return None if tensor is None else tensor.to(device, non_blocking=device.type != "cpu")
