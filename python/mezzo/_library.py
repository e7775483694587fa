"""Finds the build of mezzo that fits the installed torch, without importing torch, and loads it into torch."""

import functools
import importlib.util
import os

TYPE_CHECKING = False  # of typing, whose import takes the command as long as the rest
if TYPE_CHECKING:
    from typing import Any


class UnsupportedTorch(ImportError):
    """torch is missing, or this package has no build for it."""


def package_folder(name: str) -> str | None:
    """The folder of an installed package, which is not imported; None if there is none."""
    spec = importlib.util.find_spec(name)
    return spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else None


def torch_version() -> str:
    """The installed torch's version without the patch, such as 2.13."""
    folder = package_folder("torch")
    path = os.path.join(folder or "", "version.py")
    if folder is None or not os.path.isfile(path):  # as pip may leave the folder
        raise UnsupportedTorch(f"mezzo needs torch, and this Python has none: pip install 'torch=={builds()[-1]}.*'")
    with open(path, errors="replace") as file:
        line = next((line for line in file if line.startswith("__version__")), "")
    version = "".join(line.split("'")[1:2]).split(".")[:2]
    if len(version) < 2:
        raise UnsupportedTorch(f"{path} does not give torch's version; install torch again: "
                               f"pip install --force-reinstall 'torch=={builds()[-1]}.*'")
    return ".".join(version)


def builds() -> list[str]:
    """The versions of torch that this package has builds for, oldest first."""
    found = [name.removeprefix("torch") for folder in _folders() for name in os.listdir(folder) if name.startswith("torch")]
    if not found:
        raise UnsupportedTorch("this package of mezzo has no libraries; install it again")
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


@functools.cache
def folder() -> str:
    """The folder of the libraries and the program for the installed torch."""
    version = torch_version()
    for package in _folders():
        found = os.path.join(package, f"torch{version}")
        if os.path.isdir(found):
            return found
    raise UnsupportedTorch(f"mezzo has builds for torch {' and '.join(builds())}, and torch {version} is installed: "
                           f"pip install 'torch=={builds()[-1]}.*'")


def _folders() -> list[str]:
    import mezzo

    return list(mezzo.__path__)  # two of an editable installation


def program() -> tuple[str, dict[str, str]]:
    """The path of the program, and its environment.

    The program looks for libraries beside the package. Libraries of a user site or an editable installation may lie
    elsewhere.
    """
    found = folder()
    beside = os.path.dirname(os.path.dirname(found))
    elsewhere = [os.path.join(package, *lib) for name, lib in (("torch", ["lib"]), ("pyarrow", []))
                 if (package := package_folder(name)) and os.path.dirname(package) != beside]
    given = os.environ.get("LD_LIBRARY_PATH")
    paths = {"LD_LIBRARY_PATH": ":".join([*elsewhere, *([given] if given else [])])} if elsewhere else {}
    return os.path.join(found, "mezzo"), os.environ | paths


@functools.cache
def load() -> "Any":
    """Loads the library into torch once. Returns torch.ops.mezzo."""
    import torch

    torch.ops.load_library(os.path.join(folder(), "libmezzo_python.so"))  # type: ignore[no-untyped-call]
    return torch.ops.mezzo
