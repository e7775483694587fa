"""Errors and warnings of a user's compiler for the public headers."""
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = sorted(str(path.relative_to(ROOT / "include")) for path in (ROOT / "include").rglob("*.h"))
GUIDE = (ROOT / "docs/guide.md").read_text()
TORCH = Path(find_spec("torch").submodule_search_locations[0]) / "include"
WITH_TORCH = "-std=c++20", "-fsyntax-only", "-isystem", TORCH, "-isystem", TORCH / "torch/csrc/api/include"


def compile(source, *flags, compiler="g++"):
    command = [compiler, "-x", "c++", "-", "-I", ROOT / "include", *flags]
    return subprocess.run(command, input=source, capture_output=True, text=True)


@pytest.mark.parametrize("header", HEADERS)
def test_an_older_standard_is_the_first_error_and_the_last(header):
    done = compile(f"#include <{header}>\n", "-std=c++17", "-fsyntax-only")
    errors = re.findall(r"error: (.*)", done.stderr)
    assert errors == ['#error "mezzo needs C++20: compile with -std=c++20"', "mezzo/stop: No such file or directory"]


def test_every_name_in_the_guides_table_is_declared_by_mezzo_h_or_by_a_header_that_the_table_names():
    table = GUIDE.split("| Python | mezzo |\n")[1].split("\n\n")[0]
    ours = "\n".join(row.split(" | ")[1] for row in table.splitlines()[1:])
    names = sorted(set(re.findall(r"\b(?:at|torch|mezzo)(?:::[a-z]\w*)*::\w+", ours)))
    headers = ["mezzo/mezzo.h", *re.findall(r"`<([\w/.]+)>`", table), *(h for h in HEADERS if h.startswith("mezzo/distributed/"))]
    source = [f"#include <{header}>" for header in headers] + ["int main() {", *(f"  using {name};" for name in names), "}", ""]
    done = compile("\n".join(source), *WITH_TORCH)
    assert len(names) > 20 and done.returncode == 0, done.stderr


@pytest.mark.parametrize("names", [["g++"], ["clang++", "clang++-16"]], ids=["gcc", "clang"])
def test_all_headers_compile_without_a_warning(names):
    compiler = next((name for name in names if shutil.which(name)), None)
    if compiler is None:
        pytest.skip(f"{names[0]} is not installed")
    source = "".join(f"#include <{header}>\n" for header in HEADERS)
    done = compile(source, *WITH_TORCH, "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion",
                   "-Werror", compiler=compiler)
    assert done.returncode == 0, done.stderr
