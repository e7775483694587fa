"""cmake/MezzoTorch.cmake, MezzoCuda.cmake and MezzoNccl.cmake with an imitation of a LibTorch for CUDA. Three files have
the information that mezzo reads, and the headers are empty. The folders' names hold spaces."""
import os
import re
import shlex
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "cuda_runtime.h cublas_v2.h cusolverDn.h cusparse.h"  # what PyTorch's wheel brings

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH "{root}/cmake")
include(MezzoTorch)
include(MezzoCuda)
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


def configure(source, build, *arguments, **variables):
    command = ["cmake", "-G", "Ninja", "-S", source, "-B", build, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_HOME": "", "CUDA_PATH": "", **variables})


def one_line(text):
    return " ".join(text.split())


class Site:
    """A site-packages folder as `pip install torch` leaves it."""

    def __init__(self, folder):
        self.folder, self.project = folder / "site packages", folder / "a project"
        self.write("torch/share/cmake/Torch/TorchConfig.cmake", 'message(FATAL_ERROR "cannot find the CUDA libraries")')
        self.write("torch/share/cmake/Torch/TorchConfigVersion.cmake", 'set(PACKAGE_VERSION "2.13.0")')
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
        return self

    def configure(self, *arguments, **variables):
        return configure(self.project, self.project / "build", f"-DCMAKE_PREFIX_PATH={self.folder / 'torch'}", *arguments, **variables)

    def nccl_line(self, **variables):
        done = self.configure("-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON", **variables)
        assert done.returncode == 0, done.stderr
        assert "-- definitions: USE_DISTRIBUTED;USE_C10D_GLOO\n" in done.stdout
        line, = [line for line in done.stdout.splitlines() if "NCCL" in line]
        return line


def make_nvcc(folder, version):
    """A program that says it is the nvcc of this version, for GPUs of 9.0; the value of PATH that finds it first."""
    folder.mkdir()
    (folder / "nvcc").write_text(f"#!/bin/sh\necho Cuda compilation tools, release {version}, V{version}.1\necho compute_90\necho TOP={folder.parent}\n")
    (folder / "nvcc").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_nccl_is_left_out_with_a_reason_until_all_that_it_needs_is_there(site, tmp_path):
    assert site.nccl_line() == (
        "-- mezzo: without NCCL, so ranks on GPUs cannot talk to each other: crt/host_config.h, nv/target not found. "
        "For the .venv's torch, scripts/setup.sh installs these headers; for a LibTorch zip, a CUDA toolkit and libnccl-dev have them.")
    site.headers("cu13", "crt/host_config.h nv/target").write("nvidia/cu13/lib/libcudart.so.13").write("torch/build-version", "2.13.0+cu130\n")
    assert site.nccl_line(PATH=make_nvcc(tmp_path / "other", "12.6")) == (
        "-- mezzo: without NCCL, so ranks on GPUs cannot talk to each other: libmezzo_cuda.so, which calls it, is not built without kernels for GPUs")
    assert site.nccl_line(PATH=make_nvcc(tmp_path / "fitting", "13.0")) == "-- mezzo: with NCCL"
    site.write("nvidia/cu13/include/crt/host_config.h", "#error of another version")
    assert "do not compile together" in site.nccl_line()


def test_a_toolkit_without_most_of_its_libraries_does_not_stop_the_build(site, tmp_path):
    toolkit = tmp_path / "cuda"
    for name in ("include/cuda_runtime.h", "lib64/libcudart.so"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    make_nvcc(toolkit / "bin", "13.0")
    done = site.configure(f"-DCUDAToolkit_ROOT={toolkit}")
    assert done.returncode == 0, done.stderr


def test_what_the_wheel_leaves_out_may_come_from_a_toolkit(site, tmp_path):
    for name in WHEEL.split() + ["crt/host_config.h", "nv/target"]:
        header = tmp_path / "cuda/include" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.touch()
    site.write("nvidia/cu13/lib/libcudart.so.13")
    done = site.configure(f"-DCUDAToolkit_ROOT={tmp_path / 'cuda'}", PATH=make_nvcc(tmp_path / "cuda/bin", "13.0"))
    assert "-- mezzo: with NCCL\n" in done.stdout, done.stderr


def test_a_libtorch_that_does_not_say_its_definitions_is_refused(site):
    site.write("torch/share/cmake/Caffe2/Caffe2Targets.cmake", "# of another time")
    done = site.configure()
    assert done.returncode != 0
    assert "Caffe2Targets.cmake does not say" in " ".join(done.stderr.split())


@pytest.mark.parametrize("file, text", [
    ("version.py", "__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = '13.0'\n"),
    ("version.py", "__version__ = '2.13.0+cu130'\n"),
    ("build-version", "2.13.0+cu130\n"),
])
def test_an_nvcc_of_another_cuda_than_libtorchs_is_not_used(site, tmp_path, file, text):
    site.write(f"torch/{file}", text)
    other, fitting = make_nvcc(tmp_path / "other", "12.6"), make_nvcc(tmp_path / "fitting", "13.0")
    done = configure(site.project, site.project / "build", f"-DCMAKE_PREFIX_PATH={site.folder / 'torch'}", PATH=other)
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/other/nvcc is of CUDA 12.6, LibTorch of CUDA 13.0\n" in done.stdout
    done = configure(site.project, site.project / "build", f"-DCMAKE_PREFIX_PATH={site.folder / 'torch'}", PATH=fitting)
    assert done.returncode == 0 and "LibTorch of CUDA" not in done.stdout, done.stderr


@pytest.fixture(scope="module")
def built_with_a_zip(tmp_path_factory):
    """mezzo configured with the environment's LibTorch as a zip has it: without version.py, beside an nvcc."""
    folder = tmp_path_factory.mktemp("zip")
    torch = Path(find_spec("torch").submodule_search_locations[0])
    zip_folder = folder / "a libtorch"
    zip_folder.mkdir()
    for name in ("include", "lib", "share"):
        (zip_folder / name).symlink_to(torch / name)
    (zip_folder / "build-version").write_text("2.13.0+cpu\n")
    amp = [f"-DMEZZO_BUILD_{part}=OFF" for part in ("TEXT", "DISTRIBUTED", "TESTS")]
    done = configure(ROOT, folder / "build", f"-DCMAKE_PREFIX_PATH={zip_folder}", *amp, PATH=make_nvcc(folder / "bin", "13.0"))
    return done, folder / "build"


def test_a_zip_of_libtorch_has_no_version_py(built_with_a_zip):
    done, _ = built_with_a_zip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def package(built_with_a_zip, tmp_path):
    """mezzo's CMake package, without its libraries."""
    _, build = built_with_a_zip
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "mezzoConfig.cmake").write_text((build / "mezzoConfig.cmake").read_text())
    (folder / "MezzoTorch.cmake").write_text((ROOT / "cmake/MezzoTorch.cmake").read_text())
    (folder / "mezzoTargets.cmake").write_text("")
    return folder


USER = "cmake_minimum_required(VERSION 3.25)\nproject(user LANGUAGES CXX)\n"
VERSION = ".".join(metadata.version("torch").split(".")[:2])


def test_a_user_with_another_libtorch_than_mezzos_is_told_both_versions(package, site):
    (site.project / "CMakeLists.txt").write_text(USER + "find_package(mezzo REQUIRED)\n")
    for patch, other in ((f"{VERSION}.7", None), (f"{VERSION}9.0", f"{VERSION}9")):
        site.write("torch/share/cmake/Torch/TorchConfigVersion.cmake", f'set(PACKAGE_VERSION "{patch}")')
        done = site.configure(f"-Dmezzo_DIR={package}")
        assert (done.returncode == 0) == (other is None), done.stderr
        if other:
            assert (f"mezzo was built with LibTorch {VERSION}, and {site.folder}/torch is LibTorch {other}. Name a LibTorch {VERSION} in "
                    "CMAKE_PREFIX_PATH or Torch_DIR, or build mezzo with this one.") in one_line(done.stderr)


def test_two_folders_of_a_build_find_mezzo(package, site):
    site.write("torch/share/cmake/Torch/TorchConfigVersion.cmake", f'set(PACKAGE_VERSION "{VERSION}.0")')
    (site.project / "CMakeLists.txt").write_text(USER + "add_subdirectory(one)\nadd_subdirectory(two)\n")
    for folder in "one", "two":
        (site.project / folder).mkdir()
        (site.project / folder / "CMakeLists.txt").write_text(
            "find_package(mezzo REQUIRED)\nget_target_property(definitions mezzo::torch INTERFACE_COMPILE_DEFINITIONS)\n"
            'message(STATUS "definitions: ${definitions}")\n')
    done = site.configure(f"-Dmezzo_DIR={package}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("-- definitions: USE_DISTRIBUTED;USE_C10D_GLOO\n") == 2


def test_what_is_installed_needs_no_library_of_cuda_but_in_libmezzo_cuda(site, tmp_path):
    site.headers("cu13", "crt/host_config.h")
    site.write("nvidia/cu13/lib/libcudart.so.13").write("torch/include/torch/csrc/api/include/empty.h")
    build = tmp_path / "build"
    done = configure(ROOT, build, f"-DCMAKE_PREFIX_PATH={site.folder / 'torch'}", "-DMEZZO_BUILD_TESTS=OFF", "-DMEZZO_VENV=none",
                     PATH=make_nvcc(tmp_path / "bin", "13.0"))
    assert "-- mezzo: with kernels for GPUs 90 by" in done.stdout, done.stderr
    links = {target: line for target, line in re.findall(r"^build (\S+): CXX_\w+_LINKER__\w+ (.*)$", (build / "build.ninja").read_text(), re.MULTILINE)}
    assert {target for target, line in links.items() if "cudart" in line or "torch_cuda" in line} == {"src/libmezzo_cuda.so"} < set(links)
    for file in "mezzo.pc", "CMakeFiles/Export/*/mezzoTargets.cmake", "cmake_install.cmake":
        file, = build.glob(file)
        assert not re.search("cudart|torch_cuda", file.read_text()), file
    assert "libmezzo_cuda.so" in (build / "cmake_install.cmake").read_text()
