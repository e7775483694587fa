"""A graph of the modules, drawn by graphviz from the include lines: an arrow leads from a module to one whose headers it includes."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))
from test_modules import arrows_of, modules_of  # noqa: E402

# The CMake target of a module, by the first folder of its path.
TARGETS = {"text": "mezzo::text", "encoder": "mezzo::encoder", "distributed": "mezzo::distributed"}


def target_of(module):
    return TARGETS.get(module.split("/")[0], "mezzo::mezzo")


def arrows(root=ROOT):
    return {(here, there) for _, _, here, there in arrows_of(root) if here and there and here != there}


def without_detours(pairs):
    """Leaves out an arrow if a longer way leads to the same module."""
    below = {}
    for here, there in pairs:
        below.setdefault(here, set()).add(there)

    def reach(module):
        return set().union(*({near} | reach(near) for near in below.get(module, ())))

    return {(here, there) for here, there in pairs if not any(there in reach(near) for near in below[here] - {there})}


def dot():
    lines = ["digraph modules {", 'rankdir=TB; nodesep=0.15; ranksep=0.35; bgcolor="none"; fontname="sans-serif"; fontsize=12; compound=true;',
             'node [shape=box, style=rounded, fontname="sans-serif", fontsize=12, height=0.3, margin="0.1,0.04"];', "edge [arrowsize=0.5];"]
    modules = list(modules_of(ROOT))
    for target in sorted({target_of(module) for module in modules}):
        lines.append(f'subgraph "cluster_{target}" {{ label="{target}"; labeljust=l; style=rounded;')
        lines += [f'"{module}" [label="{module.split("/")[-1] if "/" in module else module}"];' for module in modules if target_of(module) == target]
        lines.append("}")
    lines += [f'"{here}" -> "{there}";' for here, there in sorted(without_detours(arrows()))]
    return "\n".join([*lines, "}"])


def svg():
    """With the page's colours: currentColor, which is light on a dark page."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=dot(), capture_output=True, text=True, check=True).stdout
    drawn = drawn[drawn.index("<svg"):]
    drawn = re.sub(r"<title>.*?</title>\n?", "", drawn).replace('"black"', '"currentColor"')
    drawn = drawn.replace("<text ", '<text fill="currentColor" ')
    return '<div class="module-graph">' + drawn.replace("<svg ", '<svg role="img" aria-label="Graph of the modules" ', 1) + "</div>"
