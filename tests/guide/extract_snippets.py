"""Makes a C++ test of every ```cpp block in a guide: usage: extract_snippets.py GUIDE.md OUTPUT.cpp

A block is the body of one test of the fixture Guide (guide_fixture.h); its #include lines go to the top. Comments such as
`// prints TEXT` are compared with its output on std::cout. A block with a ```text block right after it must throw, with that
message.
"""
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```cpp\n(.*?)^```\n(?:\n?^```text\n(.*?)\n```\n)?", re.MULTILINE | re.DOTALL)


def literal(text):
    return f'R"guide({text})guide"'


def test_of(guide, line, code, message):
    prints = re.findall(r"// prints (.*)$", code, re.MULTILINE)
    body = [line_of_code for line_of_code in code.splitlines() if not line_of_code.startswith("#include")]
    return "\n".join([
        f"TEST_F(Guide, Line{line}) {{",
        f"  expect({literal(''.join(p.strip() + chr(10) for p in prints))}, {literal(message or '')}, [&] {{",
        f'#line {line + 1 + len(code.splitlines()) - len(body)} "{guide}"',
        *body,
        "  });",
        "}",
    ])


def main(guide, output):
    text = Path(guide).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    if len(blocks) != text.count("\n```cpp\n") or not blocks:
        raise SystemExit(f"{guide}: {text.count('```cpp')} cpp blocks, of which {len(blocks)} could be read")
    includes = sorted({line for block in blocks for line in block[1].splitlines() if line.startswith("#include")})
    tests = [test_of(guide, text.count("\n", 0, block.start()) + 1, block[1], block[2]) for block in blocks]
    Path(output).write_text("\n".join(['#include "guide_fixture.h"', *includes, "", *tests, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
