"""Finds the build of mezzo that fits the installed torch, without importing torch, and loads it into torch."""

import functools
import importlib.util
import os
import re
from pathlib import Path


class UnsupportedTorch(ImportError):
    """There is no torch, or this package has no build for it."""


def torch_folder():
    """The folder of the installed torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise UnsupportedTorch("mezzo needs torch, and this Python has none: pip install torch")
    return Path(spec.submodule_search_locations[0])


@functools.cache
def folder():
    """The folder of the libraries and the program for the installed torch."""
    package = Path(__file__).parent
    version = re.search(r"__version__ = '(\d+\.\d+)", (torch_folder() / "version.py").read_text())[1]
    found = package / f"torch{version}"
    if not (found / "mezzo").exists():
        builds = sorted(path.name.removeprefix("torch") for path in package.glob("torch*.*"))
        raise UnsupportedTorch(f"mezzo has builds for torch {' and '.join(builds) or 'none'}, and torch {version} is installed: "
                               f"pip install 'torch=={builds[-1] if builds else version}.*'")
    return found


def program():
    """The path of the program."""
    return os.fspath(folder() / "mezzo")


@functools.cache
def load():
    """Loads the library into torch once. Returns torch.ops.mezzo."""
    import torch

    torch.ops.load_library(folder() / "libmezzo_python.so")
    return torch.ops.mezzo
