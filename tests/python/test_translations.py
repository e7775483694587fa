"""Pages in Chinese have the headings, code, tables, lists and links of the pages in English."""
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHINESE = ROOT / "docs/zh-CN"
PAGES = {ROOT / "README.zh-CN.md": ROOT / "README.md",
         **{page: ROOT / "docs" / page.relative_to(CHINESE) for page in CHINESE.rglob("*.md") if page != CHINESE / "index.md"}}
CODE = re.compile(r"^(`{3,}|:{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


def target(page, link):
    """The file that a link or an included file leads to, in English; anchors are in the language of the page."""
    path = Path(os.path.normpath(page.parent / link.partition("#")[0])) if not link.startswith(("#", "https://")) else link
    return str(PAGES.get(path, path)).replace(".zh-CN.svg", ".svg")


def structure(page):
    text = page.read_text()
    code = [re.sub(r"(?<=literalinclude\} )\S+", lambda match: target(page, match[0]), block[0]) for block in CODE.finditer(text)]
    text = CODE.sub("", text)
    return dict(headings=[len(level) for level in re.findall(r"^(#+) ", text, re.MULTILINE)],
                code=code,
                words=sorted(re.findall(r"`([^`\n]+)`", text)),
                tables=[line.count(" |") for line in text.splitlines() if line.startswith("|")],
                items=len(re.findall(r"^- ", text, re.MULTILINE)),
                links=sorted(target(page, link) for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("#")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_translation_has_the_structure_of_the_page(page):
    chinese, english = structure(page), structure(PAGES[page])
    switch = lambda path: path != str(ROOT / "README.md")  # noqa: E731 # each README links to the other
    chinese["links"], english["links"] = (list(filter(switch, each["links"])) for each in (chinese, english))
    for part, expected in english.items():
        assert chinese[part] == expected, part
