"""Writes the tables of speed of README.md and README.zh-CN.md, and the bar charts in docs/images, from the pages of results."""
import re
import statistics
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"


@dataclass(frozen=True)
class Comparison:
    """Rows or columns of one table of a page: mezzo, and each Python program that could be the fastest."""
    task: dict  # by language
    precision: str
    page: str
    heading: str
    mezzo: tuple  # (row, column)
    python: tuple  # of (row, column)
    peer: str = "transformers"
    in_readme: bool = False


def training(model):
    return {"en": f"training {model}", "zh": f"训练 {model}"}


def prediction(model):
    return {"en": f"predicting with {model}", "zh": f"用 {model} 预测"}


def rows_of(*names, column="texts/s"):
    return tuple((name, column) for name in names)


def serving(milliseconds, in_readme=False):
    task = {"en": f"`mezzo serve`, 99 % within {milliseconds} ms", "zh": f"`mezzo serve`，99% 在 {milliseconds} ms 内"}
    row = str(milliseconds)
    peers = tuple((row, f"onnxruntime, fp32, {how}") for how in ("one by one", "batches"))
    return Comparison(task, "fp32", "serve.md", "MiniLM", (row, "mezzo, fp32"), peers, "onnxruntime", in_readme)


def on_gpu(name, precision, row, in_readme=False):
    return Comparison(training("BERT-base"), precision, f"{name}/gpu.md", "Training, batches of 32 texts", (row, "mezzo, texts/s"), ((row, "P2"),), in_readme=in_readme)


P2 = rows_of("P2", "P2, torch.compile")
COMPARISONS = [
    Comparison(training("BERT-base"), "bf16", "training.md", "Training, BERT 12 × 768, bf16", ("mezzo", "texts/s"), P2, in_readme=True),
    Comparison(training("BERT-base"), "fp32", "training.md", "Training, BERT 12 × 768, fp32", ("mezzo", "texts/s"), P2),
    on_gpu("h200", "bf16", "BERT-base, bf16", True),
    on_gpu("h100", "fp16", "BERT-base, fp16 with GradScaler"),
    Comparison(prediction("BERT-base"), "bf16", "training.md", "Prediction, BERT 12 × 768, bf16", ("mezzo", "texts/s"), P2),
    Comparison(prediction("MiniLM"), "int8", "int8.md", "MiniLM (6 × 384)", ("mezzo int8", "texts/s"), rows_of("onnxruntime int8"), "onnxruntime", True),
    serving(100, True),
    serving(20),
]
HEADS = {"en": ["texts or requests a second", "precision of both", "mezzo", "fastest Python", "ratio", "machine", "measured"],
         "zh": ["每秒文本数或请求数", "双方精度", "mezzo", "最快的 Python", "倍数", "机器", "测量"]}
CHART = {"en": ("Speed of mezzo, relative to the fastest Python program", "Texts or requests a second of mezzo / of Python, in the same precision. The mark is Python."),
         "zh": ("mezzo 的速度，以最快的 Python 程序为 1", "每秒文本数或请求数：mezzo / Python，双方精度相同。竖线表示 Python。")}
READMES = {"en": ("README.md", "Speed", "speed.svg"), "zh": ("README.zh-CN.md", "速度", "speed.zh-CN.svg")}


def read_table(text, heading):
    """{row: {column: cell}} of the first table below a heading; a row's name is its first cell."""
    _, found, below = text.partition(f"\n## {heading}\n")
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE) if found else None
    if not lines:
        raise SystemExit(f"summary.py: no table below '## {heading}'")
    heads, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines[0].splitlines())
    return {row[0]: dict(zip(heads[1:], row[1:])) for row in rows}


def numbers(cell):
    """A median comes without the least and the most; single runs are all in the list."""
    return [float(number.replace(",", "")) for number in re.findall(r"[\d,]*\d(?:\.\d+)?", re.sub(r"\([\d.,]+ to [\d.,]+\)|\([^()]* ×\)|\([^()]*%[^()]*\)", "", cell))]


@dataclass(frozen=True)
class Result:
    mezzo: str
    python: str
    ratio: float
    machine: str
    measured: str


def read_result(comparison, results=RESULTS):
    text = (results / comparison.page).read_text()
    table = read_table(text, comparison.heading)
    row, column = comparison.mezzo
    mezzo = statistics.median(numbers(table[row][column]))
    python = max(number for row, column in comparison.python for number in numbers(table[row][column]))
    day = re.search(r"\d{4}-\d\d-\d\d", text)[0]
    commit = table[row].get("tree") or re.search(r"(?:mezzo|are of) ([0-9a-f]{7,})", text)[1]
    if gpu := re.search(r"NVIDIA H\d+", text):
        machine = gpu[0]
    else:  # "AMD EPYC (AVX512-BF16), 2 cores;" of older pages, "AMD EPYC, cpu family 26, model 2, …; 2 processors;" of newer ones
        name, count = re.search(r"\d{4}-\d\d-\d\d, (.*?)[,;] (\d+) (?:cores|processors);", text).groups()
        family = re.search(r", cpu family (\d+), model (\d+)", name)
        machine = f"{name.split(',')[0]}{f' (family {family[1]}, model {family[2]})' if family else ''}, {count} cores"
    return Result(f"{mezzo:,g}", f"{python:,g}", mezzo / python, machine, f"{day}, {commit}")


def machine_name(machine, language):
    return machine.replace(" cores", " 核") if language == "zh" else machine


def readme_table(language, results=RESULTS):
    lines = [HEADS[language], ["---"] * len(HEADS[language])]
    for comparison in filter(lambda each: each.in_readme, COMPARISONS):
        found = read_result(comparison, results)
        lines.append([comparison.task[language], comparison.precision, found.mezzo, f"{found.python} ({comparison.peer})", f"{found.ratio:.2f}", machine_name(found.machine, language),
                      f"[{found.measured}](benchmarks/results/{comparison.page})"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


STYLE = """
  svg { font-family: -apple-system, 'Segoe UI', 'Noto Sans', 'Noto Sans CJK SC', 'Microsoft YaHei', sans-serif; font-size: 15px }
  .card { fill: #ffffff; stroke: #d1d9e0 } text { fill: #1f2328 } .note { fill: #59636e; font-size: 13px }
  .mezzo { fill: #1f6feb } .slower { fill: #bc4c00 } .python { stroke: #1f2328; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .note { fill: #9198a1 }
    .mezzo { fill: #4493f8 } .slower { fill: #db6d28 } .python { stroke: #f0f6fc }
  }
"""


def chart(language, results=RESULTS):
    """A bar for each comparison. It has a background, which is dark if the reader's system is: so it is readable on any page."""
    found = [read_result(comparison, results) for comparison in COMPARISONS]
    width, left, right, top, step = 640, 16, 150, 76, 48
    height = top + step * len(found) + 8
    scale = (width - left - right) / max(result.ratio for result in found)
    title, note = CHART[language]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
             f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>",
             f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
             f'<text x="{left}" y="30" font-weight="600">{escape(title)}</text>', f'<text class="note" x="{left}" y="52">{escape(note)}</text>']
    for i, (comparison, result) in enumerate(zip(COMPARISONS, found)):
        y = top + step * i
        bar = result.ratio * scale
        after = left + max(bar, scale) + 8
        parts += [f'<text x="{left}" y="{y + 12}">{escape(comparison.task[language].replace("`", ""))}, {comparison.precision}</text>',
                  f'<text class="note" x="{width - left}" y="{y + 12}" text-anchor="end">{escape(machine_name(result.machine, language))}</text>',
                  f'<rect class="{"mezzo" if result.ratio >= 1 else "slower"}" x="{left}" y="{y + 18}" width="{bar:.1f}" height="16" rx="2"/>',
                  f'<line class="python" x1="{left + scale:.1f}" x2="{left + scale:.1f}" y1="{y + 16}" y2="{y + 36}"/>',
                  f'<text x="{after:.1f}" y="{y + 31}"><tspan font-weight="600">{result.ratio:.2f}</tspan>'
                  f'<tspan class="note" dx="10">{result.mezzo} / {result.python}</tspan></text>']
    return "\n".join([*parts, "</svg>"]) + "\n"


def with_table(text, heading, table):
    """A README with another table below a heading."""
    before, found, below = text.partition(f"\n## {heading}\n")
    if not found:
        raise SystemExit(f"summary.py: no heading '## {heading}'")
    return before + found + re.sub(r"(?:^\|.*\n)+", lambda _: table, below, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    for language, (readme, heading, picture) in READMES.items():
        path = ROOT / readme
        path.write_text(with_table(path.read_text(), heading, readme_table(language)))
        (ROOT / "docs/images" / picture).write_text(chart(language))
        print(readme_table(language))
