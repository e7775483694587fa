"""cmake/MezzoTorch.cmake and MezzoNccl.cmake with a LibTorch for CUDA, which is made up here: two files say what mezzo
asks, and the headers are empty. The folders' names hold spaces."""
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "cuda_runtime.h cublas_v2.h cusolverDn.h cusparse.h"  # what PyTorch's wheel brings

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{root}/cmake")
include(MezzoTorch)
include(MezzoNccl)
get_target_property(definitions mezzo::torch INTERFACE_COMPILE_DEFINITIONS)
message(STATUS "definitions: ${{definitions}}")
"""

TARGETS = """
set_target_properties(torch_cpu PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  INTERFACE_LINK_LIBRARIES "c10")
set_target_properties(torch_cuda PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS "USE_C10D_NCCL")
"""


class Site:
    """A site-packages folder as `pip install torch` leaves it."""

    def __init__(self, folder):
        self.folder, self.project = folder / "site packages", folder / "a project"
        self.write("torch/share/cmake/Torch/TorchConfig.cmake", 'message(FATAL_ERROR "cannot find the CUDA libraries")')
        self.write("torch/share/cmake/Caffe2/Caffe2Targets.cmake", TARGETS)
        self.write("torch/lib/libtorch_cuda.so")
        self.headers("cu13", WHEEL)
        self.headers("nccl", "nccl.h")
        self.project.mkdir()
        (self.project / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT))

    def write(self, path, text=""):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def headers(self, package, names):
        for name in names.split():
            self.write(f"nvidia/{package}/include/{name}")

    def configure(self, *arguments):
        command = ["cmake", "-G", "Ninja", "-S", self.project, "-B", self.project / "build",
                   f"-DCMAKE_PREFIX_PATH={self.folder / 'torch'}", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def nccl_line(self):
        done = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON")
        assert done.returncode == 0, done.stderr
        assert "-- definitions: USE_DISTRIBUTED;USE_C10D_GLOO\n" in done.stdout
        line, = [line for line in done.stdout.splitlines() if "NCCL" in line]
        return line


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_nccl_is_left_out_with_a_reason_until_its_headers_are_there(site):
    assert site.nccl_line() == (
        "-- mezzo: without NCCL, so ranks on GPUs cannot talk to each other: crt/host_config.h, nv/target not found. "
        "scripts/setup.sh installs what fits the .venv's torch.")
    site.headers("cu13", "crt/host_config.h nv/target")
    assert site.nccl_line() == "-- mezzo: with NCCL"
    site.write("nvidia/cu13/include/crt/host_config.h", "#error of another version")
    assert "do not compile together" in site.nccl_line()


def test_a_toolkit_without_most_of_its_libraries_does_not_stop_the_build(site, tmp_path):
    toolkit = tmp_path / "cuda"
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart.so"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    (toolkit / "bin/nvcc").write_text("#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n")
    (toolkit / "bin/nvcc").chmod(0o755)
    done = site.configure(f"-DCUDAToolkit_ROOT={toolkit}")
    assert done.returncode == 0, done.stderr


def test_what_the_wheel_leaves_out_may_come_from_a_toolkit(site, tmp_path):
    for name in WHEEL.split() + ["crt/host_config.h", "nv/target"]:
        header = tmp_path / "cuda/include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    done = site.configure(f"-DCUDAToolkit_ROOT={tmp_path / 'cuda'}")
    assert "-- mezzo: with NCCL\n" in done.stdout, done.stderr


def test_a_libtorch_that_does_not_say_its_definitions_is_refused(site):
    site.write("torch/share/cmake/Caffe2/Caffe2Targets.cmake", "# of another time")
    done = site.configure()
    assert done.returncode != 0
    assert "Caffe2Targets.cmake does not say" in " ".join(done.stderr.split())
