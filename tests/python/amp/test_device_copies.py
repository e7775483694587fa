"""mezzo waits for copies from a device to the CPU. A CPU that reads earlier reads old values. On a machine without a
device, "meta" replaces it, and the test inspects the calls of LibTorch."""
import pathlib
import re

import _mezzo
import mezzo
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = pathlib.Path(__file__).parents[3]
aten = torch.ops.aten


class Copies(TorchDispatchMode):
    """Notes copies between devices: (from, to, whether not to wait). The device's data are all zeros."""

    def __init__(self):
        super().__init__()
        self.asked = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is aten._to_copy.default:
            source, target = args[0].device.type, torch.device(kwargs.get("device") or args[0].device).type
            if source != target:
                self.asked.add((source, target, kwargs.get("non_blocking", False)))
            if (source, target) == ("meta", "cpu"):
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and args[0].device != args[1].device:
            self.asked.add((args[1].device.type, args[0].device.type, bool(args[2:]) and args[2]))
            return args[0]
        if func is aten._local_scalar_dense.default and args[0].is_meta:
            return 0.0
        if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
            return None
        return func(*args, **kwargs)


WAITS, DOES_NOT = ("meta", "cpu", False), ("cpu", "meta", True)


def parameters(*devices):
    result = [torch.ones(3, device=device, requires_grad=True) for device in devices]
    for parameter in result:
        parameter.grad = torch.ones(3, device=parameter.device)
    return result


def test_clipping_waits_for_norms_that_come_to_the_cpu():
    with Copies() as copies:
        _mezzo.clip_grad_norm_(parameters("cpu", "meta"), 1.0)
    assert copies.asked == {WAITS, DOES_NOT}


def test_clipping_on_the_device_does_not_wait():
    with Copies() as copies:
        _mezzo.clip_grad_norm_(parameters("meta", "meta"), 1.0)
    assert copies.asked == set()


def test_a_scaler_waits_for_found_infs_and_scales_that_come_to_the_cpu():
    with Copies() as copies:
        scaler = mezzo.GradScaler("cpu")
        scaler.scale([torch.ones(()), torch.ones((), device="meta")])
        assert copies.asked == {DOES_NOT}
        assert scaler.step(torch.optim.SGD(parameters("cpu", "meta"), 0.1, foreach=False)).stepped()
        scaler.update()
    assert copies.asked == {WAITS, DOES_NOT}
    with Copies() as copies:
        scaler = mezzo.GradScaler("cpu")
        scaler.scale(torch.ones((), device="meta"))
        scaler.scale(torch.ones(()))
    assert copies.asked == {WAITS}


def test_mezzos_optimizers_wait_for_norms_that_come_to_the_cpu():
    optimizer = mezzo.optim.SGD(parameters("cpu", "meta"), 0.1, max_grad_norm=1.0)
    with Copies() as copies:
        optimizer.step()
    assert optimizer.skipped == 0
    assert copies.asked == {WAITS, DOES_NOT}


def test_reports_wait_for_what_comes_to_the_cpu():
    with Copies() as copies:
        assert not _mezzo.overflow_report(parameters("cpu", "meta")).overflowed
        cpu, device = (p.grad for p in parameters("cpu", "meta"))
        assert len(mezzo.advise_scale(dict(both=[cpu, device], device=device), 1.0).groups) == 2
    assert copies.asked == {WAITS}


def test_one_place_alone_copies_without_waiting():
    """Whatever its device: all others ask it."""
    folders = ["src", "include", "apps", "examples", "benchmarks"]
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".h", ".cu", ".cuh")]
    assert len(sources) > 100
    asks = re.compile(r"non_blocking(?!=\*/false)|\b(?:to|copy_|cpu|cuda)\([^;]*,\s*true\s*[,)]")
    found = {str(path.relative_to(ROOT)): match.group() for path in sources if (match := asks.search(path.read_text()))}
    assert list(found) == ["src/memory/device_copy.cpp"], found
