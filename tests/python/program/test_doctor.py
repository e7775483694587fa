"""mezzo doctor: its report on the machine against Python's findings. No test depends on a speed."""
import json
import os
import subprocess

import pytest
import torch
from support import PROGRAM

CPUS = sorted(os.sched_getaffinity(0))


def doctor(*arguments, prefix=(), **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MEZZO_CPU_CAPABILITY", "MEZZO_AMX")}
    return subprocess.run([*prefix, PROGRAM, "doctor", *arguments], capture_output=True, text=True, timeout=300, check=True,
                          env={**environment, **variables})


def facts(*arguments, **variables):
    return json.loads(doctor("--json", *arguments, **variables).stdout)


def problems(found):
    return [problem["problem"] for problem in found["problems"]]


@pytest.fixture(scope="module")
def found():
    return facts()


def test_it_says_what_the_kernel_and_pytorch_say(found):
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":") for line in file]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    assert found["processor"] == fields.get("model name", "")
    flags = fields.get("flags", fields.get("Features", "")).split()
    assert set(found["instructions"]) <= set(flags)
    assert ("avx512_bf16" in found["instructions"]) == ("avx512_bf16" in flags) and ("avx2" in found["instructions"]) == ("avx2" in flags)
    assert found["processors"] == os.cpu_count() and found["usable_processors"] == len(CPUS)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < found["available_memory_bytes"] <= found["memory_bytes"] <= pages
    shm = os.statvfs("/dev/shm")
    assert found["shared_memory_bytes"] == shm.f_blocks * shm.f_frsize
    assert found["libtorch"] == torch.__version__.split("+")[0]
    assert found["libtorch_has_cuda"] == torch.backends.cuda.is_built()
    assert len(found["gpus"]) == torch.cuda.device_count()


def test_rates_are_measured_for_every_precision(found):
    by_name = {product["precision"]: product for product in found["products"]}
    assert list(by_name)[:3] == ["fp32", "bf16", "fp16"]
    assert all(product["operations_per_second"] > 0 for product in by_name.values())
    assert (by_name["fp32"]["peak"] is None) == (found["kernels"] == "baseline") and by_name["fp16"]["peak"] is None
    assert ("int8" in by_name) == (found["kernels"] != "baseline")
    assert found["copied_bytes_per_second"] > 0


def test_the_precision_is_the_one_that_auto_takes(found):
    assert found["precision"]["train"] == ("bf16" if found["kernels"] == "avx512_bf16" else "fp32")
    assert found["precision"]["predict"] in (found["precision"]["train"], "int8") and found["precision"]["why"]


def test_what_is_wrong_is_named():
    found = facts(OMP_NUM_THREADS="1", MEZZO_CPU_CAPABILITY="baseline")
    said = problems(found)
    assert any("kernels run in baseline, and the processor has" in problem for problem in said), said
    assert found["kernels"] == "baseline" and found["threads"] == 1
    if found["quota"] is None:
        assert any(f"1 of {len(CPUS)} possible threads" in problem for problem in said) == (len(CPUS) > 1)


@pytest.mark.skipif(len(CPUS) < 2, reason="one processor only")
def test_processors_that_it_may_not_use_do_not_count():
    found = facts(prefix=["taskset", "--cpu-list", str(CPUS[0])])
    assert found["usable_processors"] == 1 and found["threads"] == 1
    crowded = facts(prefix=["taskset", "--cpu-list", str(CPUS[0])], OMP_NUM_THREADS="2")
    assert any("2 threads, but the container or taskset allows 1 at a time" in problem for problem in problems(crowded))


def test_lines_for_people():
    lines = doctor().stdout.splitlines()
    assert [line.split()[0] for line in lines[:1]] == ["Processor"] and any(line.startswith("Training    --precision ") for line in lines)
    assert any(line.startswith("What is wrong") or line == "Nothing is wrong with this machine." for line in lines)
    assert not any(line != line.rstrip() for line in lines)


def test_amx_is_refused_if_the_kernels_cannot_use_it(found):
    cases = {"yes": "MEZZO_AMX is 'yes'. Set 1 for AMX, or 0"}
    if not {"amx_bf16", "amx_int8"} <= set(found["instructions"]):
        cases["1"] = "MEZZO_AMX is 1, but this processor has no AMX for bf16 and int8, or Linux does not allow it. Unset MEZZO_AMX"
    for value, message in cases.items():
        done = subprocess.run([PROGRAM, "doctor"], capture_output=True, text=True, env={**os.environ, "MEZZO_AMX": value})
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1, done
