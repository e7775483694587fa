"""Facts, links and flags of the pages in Markdown, outside of their snippets."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guide.md").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_table_of_formats_is_computed(dtype):
    info = torch.finfo(dtype)
    smallest = torch.nextafter(torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)).item()
    numbers = [f"{x:.3e}" for x in (info.max, info.smallest_normal, smallest, info.eps)]
    name = str(dtype).removeprefix("torch.")
    assert f"| {name} | {' | '.join(numbers)} | {info.bits} |" in GUIDE


def read_page(path):
    """The text without code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def headings(path):
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", read_page(path), re.MULTILINE)}


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md", ROOT / "benchmarks/README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https://)([^)]+)\)", read_page(page)):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def test_every_page_of_docs_is_linked_from_the_readme():
    links = re.findall(r"\]\((docs/[^)#]+)", (ROOT / "README.md").read_text())
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(links)


# Flags of CMake, pip, our scripts and other programs that the pages name.
FOREIGN_FLAGS = {"--no-python"}


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}.md" for name in ("data", "gpus", "precision", "predicting", "training"))])
def test_flags_of_the_pages_exist(page):
    completion = subprocess.run([os.environ["MEZZO_PROGRAM"], "completion", "bash"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][\w-]*", completion)) | FOREIGN_FLAGS
    flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", (ROOT / page).read_text()))
    assert flags and flags <= known


def test_programs_on_several_ranks_also_run_alone():
    made = re.findall(r"ProcessGroup group\((.*)\);", GUIDE)
    assert len(made) == 2 and all("detect().value_or(" in environment for environment in made), made


def test_every_example_is_listed_and_has_a_twin():
    examples = {path.stem for path in (ROOT / "examples").glob("*.cpp")}
    table = set(re.findall(r"\| \[(\w+)\]\(\1\.cpp\)", (ROOT / "examples/README.md").read_text()))
    assert table == examples == {path.stem for path in (ROOT / "tests/python/examples").glob("*.py")}


def test_snippets_that_cannot_be_read_are_an_error(tmp_path):
    (tmp_path / "guide.md").write_text("# A guide\n\n```cpp\nint never_closed;\n")
    script = ROOT / "tests/guide/extract_snippets.py"
    done = subprocess.run([sys.executable, script, tmp_path / "guide.md", tmp_path / "out.cpp"], capture_output=True, text=True)
    assert done.returncode == 1 and "1 cpp blocks, of which 0 could be read" in done.stderr
