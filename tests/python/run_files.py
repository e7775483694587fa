"""Runs test files by pytest, each in a separate process. The processes are forked from one that has imported the common modules:
imports take longer than most tests. Fails if a file fails.

    run_files.py FILE...

Tests with the mark `slow` run only if MEZZO_ALL_TESTS is set, as scripts/test.sh --all does, or if PYTEST_ADDOPTS chooses tests.
"""
import contextlib
import gc
import importlib
import os
import re
import sys
from pathlib import Path

import pytest


def prepare(files):
    """Not at the top of the file, which processes that tests start by multiprocessing import again."""
    names = ["torch"]
    if any(re.search("transformers|sklearn|support|families", Path(file).read_text()) for file in files):
        names += ["safetensors.torch", "sklearn.metrics", "transformers.models.bert.modeling_bert", "transformers.models.auto"]
    # If a package is missing, its tests report it. A module that starts threads when it is imported must support a fork, as
    # OpenBLAS does.
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage again and again: spares the imported modules


def main():
    prepare(sys.argv[1:])
    are_chosen = re.search(r"(^|\s)-[km]", os.environ.get("PYTEST_ADDOPTS", ""))
    chosen = [] if are_chosen or os.environ.get("MEZZO_ALL_TESTS") else ["-m", "not slow"]
    failed = []
    for file in map(Path, sys.argv[1:]):
        print(f"{file.name}:", flush=True)
        child = os.fork()
        if child == 0:
            sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "-o",
                                  "markers=slow: long, and rarely breaks", *chosen, str(file)]))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        may_be_empty = are_chosen or (chosen and "mark.slow" in file.read_text())
        nothing_chosen = status == pytest.ExitCode.NO_TESTS_COLLECTED and may_be_empty
        if status != 0 and not nothing_chosen:
            failed.append(file.name)
    sys.exit(f"failed: {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
