"""What docs/guide.md and examples/README.md state outside of their snippets."""
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


@pytest.mark.parametrize("page", ["docs/guide.md", "examples/README.md"])
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    for link in links:
        assert link[1:] in headings if link.startswith("#") else (ROOT / page).parent.joinpath(link).exists(), link


def test_every_example_is_listed_and_has_a_twin():
    examples = {path.stem for path in (ROOT / "examples").glob("*.cpp")}
    table = set(re.findall(r"\| \[(\w+)\]\(\1\.cpp\)", (ROOT / "examples/README.md").read_text()))
    assert table == examples == {path.stem for path in (ROOT / "tests/python/examples").glob("*.py")}


def test_snippets_that_cannot_be_read_are_an_error(tmp_path):
    (tmp_path / "guide.md").write_text("# A guide\n\n```cpp\nint never_closed;\n")
    script = ROOT / "tests/guide/extract_snippets.py"
    done = subprocess.run([sys.executable, script, tmp_path / "guide.md", tmp_path / "out.cpp"], capture_output=True, text=True)
    assert done.returncode == 1 and "1 cpp blocks, of which 0 could be read" in done.stderr
