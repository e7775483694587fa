"""Runs test files by pytest, each in a process of its own, forked from one that has imported what most of them want: that takes longer than
most tests do. Fails where one of them fails.

    run_files.py FILE...
"""
import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

import pytest


def prepare():
    """Not at the top of the file, which processes that tests start by multiprocessing import again."""
    # Where a package is missing, the tests that need it say so. What starts threads when it is imported must stand a fork, as OpenBLAS does.
    for name in "torch", "safetensors.torch", "sklearn.metrics", "transformers.models.bert.modeling_bert", "transformers.models.auto":
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage again and again: not among what is imported


def main():
    prepare()
    failed = []
    for file in map(Path, sys.argv[1:]):
        print(f"{file.name}:", flush=True)
        child = os.fork()
        if child == 0:
            sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", str(file)]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        nothing_chosen = status == pytest.ExitCode.NO_TESTS_COLLECTED and "PYTEST_ADDOPTS" in os.environ
        if status != 0 and not nothing_chosen:
            failed.append(file.name)
    sys.exit(f"failed: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
