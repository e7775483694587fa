"""A LibTorch of another minor version than the one that mezzo was built with, which a library says that is loaded first."""
import os
import subprocess

import pytest
import torch
from support import PROGRAM

EXAMPLE = f"{os.environ['MEZZO_EXAMPLES']}/example_basic"
MAJOR, MINOR = map(int, torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def other_libtorch(tmp_path_factory):
    library = tmp_path_factory.mktemp("other") / "other_libtorch.so"
    source = f"unsigned long aoti_torch_abi_version(void) {{ return {MAJOR}UL << 56 | {MINOR + 1}UL << 48; }}"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


@pytest.mark.parametrize("command, beginning", [([PROGRAM, "ops"], "mezzo ops: "), ([PROGRAM, "--version"], "mezzo: "), ([EXAMPLE], "")])
def test_another_libtorch_than_the_one_it_was_built_with_is_refused(other_libtorch, command, beginning):
    done = subprocess.run(command, capture_output=True, text=True, env=other_libtorch)
    assert done.returncode != 0 and done.stdout == ""
    assert (f"{beginning}mezzo was built with LibTorch {MAJOR}.{MINOR}, and this process has loaded LibTorch {MAJOR}.{MINOR + 1}. "
            f"Run it with LibTorch {MAJOR}.{MINOR}, or build mezzo with LibTorch {MAJOR}.{MINOR + 1}.") in done.stderr
    if command[0] == PROGRAM:
        assert done.returncode == 1 and done.stderr.count("\n") == 1
