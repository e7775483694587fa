"""Figures of README and of docs/speed.md equal the figures of the linked pages."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
import summary  # noqa: E402

SPEED = (ROOT / "docs/speed.md").read_text()


@pytest.mark.parametrize("language", summary.READMES)
def test_readme_has_the_table_of_the_pages(language):
    readme, heading, _ = summary.READMES[language]
    text = (ROOT / readme).read_text()
    assert text == summary.with_table(text, heading, summary.readme_table(language)), "run python benchmarks/summary.py"


@pytest.mark.parametrize("language", summary.READMES)
def test_the_chart_is_that_of_the_pages(language):
    picture = summary.READMES[language][2]
    assert (ROOT / "docs/images" / picture).read_text() == summary.chart(language), "run python benchmarks/summary.py"


def test_no_comparison_is_slower_than_python():
    """A slower one belongs to the reasons in README not to use mezzo."""
    assert [found for found in map(summary.read_result, summary.COMPARISONS) if found.ratio < 1] == []


def test_both_sides_of_a_comparison_have_its_precision():
    for each in summary.COMPARISONS:
        for words in (each.mezzo, *each.python):
            named = set(re.findall(r"fp32|fp16|bf16|int8", " ".join([each.heading, *words])))
            assert named == {each.precision}, each


def floats(text):
    """Each with its number of decimals."""
    return [(float(number.replace(",", "")), len(number.partition(".")[2])) for number in re.findall(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?(?![\w.-]|,\d)", text)]


def pages_of(text):
    return [(ROOT / "docs" / link).read_text() for link in re.findall(r"\]\((\.\./benchmarks/results/[^)]+)\)", text)]


def sections():
    for section in re.split(r"^## ", SPEED, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        yield pytest.param(text, id=heading)


def rows(text):
    """Rows of tables, each with the heads of its columns."""
    for lines in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        heads, _, *cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines())
        for row in cells:
            yield list(zip(heads, row))


NAMES = r"\b(?=\d*[a-f])[0-9a-f]{7,8}\b|\d+ × \d+|H\d00|99 %|[\d,]+ tokens|\d+ cores|\d{4}-\d\d-\d\d|1 to 64 connections|`[^`]*`|\]\([^)]*\)|(?:cpu family|model) \d+|2 processors|[a-z]+\d+"


@pytest.mark.parametrize("section", list(sections()))
def test_figures_of_speed_are_on_the_pages(section):
    """Rounded as they are there. A row with a link is about that page; a ratio may be of the two columns before it."""
    pages = pages_of(section)
    prose = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
    claims = [("", prose, pages)] if pages else []
    for row in rows(section):
        own = pages_of(" ".join(cell for _, cell in row)) or pages
        for i, (head, cell) in enumerate(row):
            if head == "ratio" and cell:
                (mezzo, digits), (python, more) = floats(row[i - 2][1])[0], floats(row[i - 1][1])[0]
                error = mezzo / python * (0.5 * 10**-digits / mezzo + 0.5 * 10**-more / python)
                assert abs(float(cell) - mezzo / python) <= 0.005 + error, row
            else:
                claims.append((head, cell, own))
    for head, claim, own in claims:
        known = [number for page in own for number, _ in floats(page)]
        for number, digits in floats(re.sub(NAMES, "", claim)):
            assert any(abs(number - other) <= 0.5 * 10**-digits + 1e-9 for other in known), f"{number} in {head} {claim}"


def test_commits_and_dates_of_speed_are_on_the_pages():
    for line in SPEED.splitlines():
        for page in pages_of(line):
            for fact in re.findall(r"\d{4}-\d\d-\d\d|\b[0-9a-f]{7,8}(?:-dirty)?\b", line):
                assert fact in page, (fact, line)


def test_pages_that_nothing_quotes_are_history():
    found = subprocess.run(["git", "ls-files", "README*.md", "SECURITY.md", "docs/*.md", "benchmarks/results/*.md"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in found.stdout.split() if (ROOT / name).exists()]
    if found.returncode != 0:
        pytest.skip("git has no history here")
    pages = {file for file in files if ROOT / "benchmarks/results" in file.parents}
    quoted = {(file.parent / link).resolve() for file in files if file not in pages for link in re.findall(r"\]\(([^)\s]*benchmarks/results/[^)\s]+\.md)\)", file.read_text())}
    assert {page for page in pages if "\nHistory: " in page.read_text()} == pages - quoted


def test_the_citation_has_the_version():
    version = re.search(r'MEZZO_VERSION "([\d.]+)"', (ROOT / "include/mezzo/version.h").read_text())[1]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
