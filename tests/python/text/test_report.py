"""report.html: well-formed for any input, and its curves, read back from the drawing, are the data."""
import json
import math
import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import _mezzo
import pytest

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "link", "img"}


class TagBalance(HTMLParser):
    """Fails unless every element is closed in order; gathers the texts of headings."""

    def __init__(self):
        super().__init__()
        self.open, self.tags = [], set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"


def charts(page):
    """The page's charts by title, after a check that page and charts are well-formed."""
    balance = TagBalance()
    balance.feed(page)
    assert balance.open == []
    assert not balance.tags & {"script", "img", "link", "iframe", "object"}
    figures = re.findall(r"<figure>.*?</figure>", page, re.S)
    return {
        re.search(r"<b>(.*?)</b>", figure)[1]: ElementTree.fromstring(re.search(r"<svg.*</svg>", figure, re.S)[0])
        for figure in figures
    }


def steps(count, seed=123, **changes):
    rng = random.Random(seed)
    for step in range(1, count + 1):
        record = dict(event="step", step=step, epoch=step / count, loss=rng.uniform(0.2, 3), lr=3e-5 * step / count,
                      grad_norm=rng.uniform(1, 9), loss_scale=2.0 ** rng.randint(8, 16), skipped=rng.random() < 0.1,
                      samples=32, tokens=rng.randint(400, 800), seconds=rng.uniform(0.5, 2))
        yield {**record, **changes}


def evals(count, every):
    for step in range(every, count + 1, every):
        yield dict(event="eval", step=step, split="dev", loss=1 + 1 / step, accuracy=0.6 - 0.1 / step,
                   macro_f1=0.5 - 0.1 / step, seconds=3.0)


def render(tmp_path, records, **parts):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return _mezzo.render_report(str(path), **parts)


def with_class(svg, name):
    return [element for element in svg.iter() if name in element.get("class", "").split()]


def axis(svg, name, place):
    """The function from a place in the drawing to the value, from two of the axis' ticks."""
    ticks = [(place(tick), float(tick.get("data-v"))) for tick in with_class(svg, name)]
    (p0, v0), (p1, v1) = ticks[0], ticks[-1]
    for p, v in ticks:
        assert v == pytest.approx(v0 + (p - p0) * (v1 - v0) / (p1 - p0), abs=abs(v1 - v0) * 1e-3)
    return lambda p: v0 + (p - p0) * (v1 - v0) / (p1 - p0)


def curve(svg, name):
    """The points of the first path of the class, in the units of the axes."""
    number = r"(-?[\d.]+)"
    x_of = axis(svg, "tx", lambda t: float(re.search(f"M{number} ", t.find(SVG + "path").get("d"))[1]))
    y_of = axis(svg, "ty", lambda t: float(re.search(f" {number}H", t.find(SVG + "path").get("d"))[1]))
    path = with_class(svg, name)[0].get("d")
    return [(x_of(float(x)), y_of(float(y))) for x, y in re.findall(f"[ML]{number} {number}", path)]


@pytest.mark.parametrize("title, cls, key", [("Loss", "thin", "loss"), ("Gradient norm", "thin", "grad_norm"),
                                             ("Learning rate", "line", "lr"), ("Time per step", "thin", "seconds")])
def test_a_curve_read_back_from_the_drawing_is_the_data(tmp_path, title, cls, key):
    records = list(steps(288))
    drawn = curve(charts(render(tmp_path, records))[title], cls)
    assert len(drawn) == 288
    span = max(record[key] for record in records)
    for (x, y), record in zip(drawn, records):
        assert x == pytest.approx(record["step"], abs=0.1)
        assert y == pytest.approx(record[key], abs=span * 1e-3)


def test_a_thinned_curve_keeps_least_and_greatest_values(tmp_path):
    records = list(steps(20000))
    svg = charts(render(tmp_path, records))["Loss"]
    drawn = curve(svg, "thin")
    assert len(drawn) < 4 * 520
    losses = [record["loss"] for record in records]
    assert min(y for _, y in drawn) == pytest.approx(min(losses), abs=5e-3)
    assert max(y for _, y in drawn) == pytest.approx(max(losses), abs=5e-3)


def test_points_and_hover_columns_carry_the_exact_values(tmp_path):
    records = list(steps(100))
    evaluations = list(evals(100, 10))
    page = charts(render(tmp_path, records + evaluations))
    read = lambda svg, name: [(float(e.get("data-x")), float(e.get("data-y"))) for e in with_class(svg, name)]
    assert read(page["Loss"], "h") == [(record["step"], record["loss"]) for record in records]
    assert read(page["Loss"], "dot") == [(record["step"], record["loss"]) for record in evaluations]
    assert read(page["Dev accuracy"], "dot") == [(r["step"], 100 * r["accuracy"]) for r in evaluations] + [
        (r["step"], 100 * r["macro_f1"]) for r in evaluations], "in percent"
    assert read(page["Loss scale"], "h") == [(record["step"], record["loss_scale"]) for record in records]
    assert read(page["Tokens per second"], "h") == [(r["step"], r["tokens"] / r["seconds"]) for r in records]


def test_skipped_steps_are_marked(tmp_path):
    records = list(steps(100))
    skipped = [record["step"] for record in records if record["skipped"]]
    titles = [e.find(SVG + "title").text for e in with_class(charts(render(tmp_path, records))["Loss scale"], "mark")]
    assert titles == [f"skipped step: step {step}" for step in skipped]


AWKWARD = [None, 0.0, -1.0, 1e308, -1e308, 5e-324, 1.0]


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_awkward_numbers_make_a_well_formed_page(tmp_path, value, count):
    keys = ["epoch", "loss", "lr", "grad_norm", "loss_scale", "seconds"]
    records = list(steps(count, **{key: value for key in keys}))
    page = render(tmp_path, records)
    scales = value != 1  # a loss scale of 1 throughout has no chart
    assert len(charts(page)) == (7 + scales if count else 0)
    assert not re.search(r"\b(nan|inf)\b", page.split("</style>")[1])


@pytest.mark.parametrize("seed", range(20))
def test_random_strings_make_a_well_formed_page(tmp_path, seed):
    rng = random.Random(seed)
    alphabet = "<>&\"'/=-!]\x00\x01\x1b\n\t\u0085\ufffe情绪😀ab"
    text = lambda: "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 30)))
    size = rng.choice([2, 6, 20, 40, 61])
    page = render(tmp_path, steps(3), title=text(), label_names=[text() for _ in range(size)],
                  confusion_matrix=[[rng.randint(0, 9) for _ in range(size)] for _ in range(size)],
                  evaluation_report=text(), settings=[(text(), text())],
                  environment=[(text(), text())])
    charts(page)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe]", page)


@pytest.mark.parametrize("seed", range(10))
def test_any_diagnosis_makes_a_well_formed_page(tmp_path, seed):
    rng = random.Random(seed)
    group = lambda: dict(name=rng.choice(["<b>", "layer 0", ""]), zeros=rng.choice([0, 9]), non_finite=0,
                         largest=rng.choice([None, 0.0, 1e-45, 3e38]), first_exponent=rng.choice([-149, -20, 100]),
                         counts=[rng.choice([0, 1, 10**15]) for _ in range(rng.randint(0, 27))])
    records = [dict(event="diagnose", step=step, kind=rng.choice(["gradients", "overflow", "first_op", "<i>"]),
                    loss_scale=rng.choice([None, 0.0, 1e-45, 1.0, 65536.0, 3e38]), recommended_scale=rng.choice([None, 1.0]),
                    text="<script>\n&", groups=[group() for _ in range(rng.randint(0, 3))]) for step in range(5)]
    page = render(tmp_path, list(steps(3)) + records)
    charts(page)
    assert "Numerical diagnosis" in page and not re.search(r"\b(nan|inf)\b", page.split("</style>")[1])


def table_rows(html):
    """Texts of the cells of each row."""
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.S)]
    return [row for row in cells if row]


def section(page, heading):
    found = re.search(rf"<section[^>]*><h[23]>{heading}.*?</section>", page, re.S)
    return found and found[0]


@pytest.mark.parametrize("size", [2, 5, 61])
def test_quality_of_labels_is_scikit_learns(tmp_path, size):
    from sklearn.metrics import precision_recall_fscore_support

    rng = random.Random(size)
    matrix = [[rng.choice([0, 0, 1, 3, 9]) + (i == j) * 20 for j in range(size)] for i in range(size)]
    matrix[1] = [0] * size  # none of it, and below it is never predicted
    for row in matrix:
        row[0] = 0
    matrix[0][size - 1] = 7
    true, predicted = zip(*[(t, p) for t, row in enumerate(matrix) for p, n in enumerate(row) for _ in range(n)])
    names = [f"label {i}" for i in range(size)]
    page = render(tmp_path, [], label_names=names, confusion_matrix=matrix)
    charts(page)
    *shares, support = precision_recall_fscore_support(true, predicted, labels=range(size), zero_division=0)
    right = {names[i]: [str(int(support[i])), *(f"{100 * share[i]:.1f} %" for share in shares)] for i in range(size)}
    shown = {row[0]: row[1:] for row in table_rows(section(page, "Labels"))[1:]}
    if size <= 60:
        assert list(shown) == names and shown == right
    else:  # the worst of them
        assert len(shown) == 60 and shown.items() <= right.items()
        [left_out] = right.keys() - shown.keys()
        assert float(right[left_out][3][:-2]) == max(float(row[3][:-2]) for row in right.values())


def test_most_confused_labels_come_by_their_counts(tmp_path):
    page = render(tmp_path, [], label_names=["a", "b", "c"], confusion_matrix=[[5, 2, 0], [9, 1, 0], [0, 0, 3]])
    assert table_rows(section(page, "Most confused"))[1:] == [["b", "a", "9", "90.0 %"], ["a", "b", "2", "28.6 %"]]
    assert section(render(tmp_path, [], confusion_matrix=[[5, 0], [0, 4]]), "Most confused") is None
    assert section(render(tmp_path, [], confusion_matrix=[[0, 0], [0, 0]]), "Labels") is None


def test_values_of_a_chart_are_in_a_table(tmp_path):
    def values(records, title):
        page = render(tmp_path, records, best_step=3)
        return table_rows(re.search(rf"<details><summary>Values of {title}</summary>.*?</details>", page, re.S)[0])

    records = list(steps(5))
    rows = values([*records, *evals(5, 3)], "Loss")
    assert rows[0] == ["step", "train", "dev"]
    assert [row[0] for row in rows[1:]] == ["1", "2", "3", "4", "5"]
    assert [float(row[1]) for row in rows[1:]] == pytest.approx([r["loss"] for r in records], rel=1e-3)
    assert [row[2] for row in rows[1:]] == ["", "", "1.333", "", ""]
    many = values(steps(5000), "Gradient norm")[1:]
    assert len(many) == 100 and many[0][0] == "1" and many[-1][0] == "5,000"
    dev = [row for row in values([*steps(5000), *evals(5000, 700)], "Loss")[1:] if row[3]]
    assert [row[0] for row in dev] == [f"{step:,}" for step in range(700, 5000, 700)]
    assert values(steps(2, loss=None), "Loss")[1:] == [["1", "", ""], ["2", "", ""]]


def test_chosen_settings_come_before_those_by_default(tmp_path):
    settings = [("epochs", "3"), ("seed", "7"), ("lr", "1"), ("warmup", "0")]
    rows = lambda defaults: table_rows(section(render(tmp_path, [], settings=settings, default_settings=defaults), "Settings"))
    defaults = [("epochs", "3"), ("seed", "0"), ("lr", "1"), ("warmup", "0.1")]
    assert rows(defaults) == [["seed", "7"], ["warmup", "0"], ["epochs", "3"], ["lr", "1"]]
    page = render(tmp_path, [], settings=settings, default_settings=defaults)
    assert "<details><summary>2 default settings</summary>" in section(page, "Settings")
    assert rows(settings) == rows([]) == [list(pair) for pair in settings]


def test_calibration_shows_the_bins_that_have_rows(tmp_path):
    page = render(tmp_path, [], calibration=[(0, 0, 0), (4, 0.3, 0.5), (10, 0.95, 0.8)])
    svg = charts(page)["Accuracy by confidence"]
    points = [(float(dot.get("data-x")), float(dot.get("data-y"))) for dot in with_class(svg, "dot")]
    assert points == [pytest.approx((30, 50)), pytest.approx((95, 80))]
    values = table_rows(re.search("<details><summary>Values of Accuracy by confidence.*?</details>", page, re.S)[0])
    assert values == [["confidence, %", "perfect calibration", "accuracy"], ["0", "0", ""], ["30", "", "50"], ["95", "", "80"],
                      ["100", "100", ""]]


def headline(page):
    return {name: (value, detail) for name, value, detail in re.findall(
        r'<div class="number"><div class="name">(.*?)</div><div class="value">(.*?)</div><div class="detail">(.*?)</div>', page)}


@pytest.mark.parametrize("matrix", [[[90, 10], [30, 20]], [[1, 0], [0, 0]], [[0, 5], [3, 0]], [[7000, 100], [300, 2600]]])
def test_accuracy_stands_beside_its_interval_and_the_majority_baseline(matrix, tmp_path):
    from scipy.stats import binomtest

    right, texts = matrix[0][0] + matrix[1][1], sum(map(sum, matrix))
    final = dict(event="eval", step=5, split="test", loss=1, accuracy=right / texts, macro_f1=0.5, seconds=1, final=True)
    shown = headline(render(tmp_path, [*steps(5), final], label_names=["no", "yes"], confusion_matrix=matrix))
    interval = binomtest(right, texts).proportion_ci(method="wilson")
    value, detail = shown["Test accuracy"]
    assert value == f"{100 * right / texts:.1f} %"
    assert detail == f"95 % interval: {100 * interval.low:.1f} % to {100 * interval.high:.1f} %"
    most = max(map(sum, matrix))
    assert shown["Majority baseline"] == (f"{100 * most / texts:.1f} %", "always predicting " + ("no" if sum(matrix[0]) == most else "yes"))
    assert list(shown)[:2] == ["Test accuracy", "Majority baseline"]


def test_warnings_come_first(tmp_path):
    warning = dict(event="warning", step=3, kind="diverged", text="step 3: the loss is <b>inf</b>.")
    page = render(tmp_path, [*steps(3), warning], notes=["warning: 2 texts are empty", "5 training texts"])
    body = page.split("</style>")[1]
    first = re.search(r'<div class="card notice"><b class="bad">Warnings</b>.*?</div>', body, re.S)
    assert first and first.start() < body.index('class="headline"')
    assert re.findall("<li>(.*?)</li>", first[0]) == ["step 3: the loss is &lt;b&gt;inf&lt;/b&gt;.", "2 texts are empty"]
    assert "2 texts" not in section(page, "Notes") and "5 training texts" in section(page, "Notes")
    assert 'class="bad">Warnings' not in render(tmp_path, list(steps(3)))


def test_links_lead_to_every_section(tmp_path):
    page = render(tmp_path, [*steps(30), *evals(30, 10)], label_names=["a", "b"], confusion_matrix=[[5, 2], [9, 1]], evaluated="test, model of step 5",
                  commands=[("Label a text", "mezzo predict --model 'a & b'")], train_counts=[3, 4], train_lengths=[5, 9],
                  settings=[("seed", "1")], environment=[("LibTorch", "2")], notes=["a note"])
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', page)
    assert [name for _, name in links] == ["Commands", "Training", "Skipped steps", "Quality", "Evaluations", "Training data", "Notes", "Settings", "Environment"]
    assert [re.search(rf'<section id="{target}"><h2>', page) is not None for target, _ in links] == [True] * len(links)
    command = re.search(r'<pre class="wrap">(.*)</pre>', section(page, "Commands"))[1]
    assert command == "mezzo predict <span class=\"flag\">--model</span> &#39;a &amp; b&#39;"


def test_training_labels_and_lengths_are_counted(tmp_path):
    def counted(**more):
        return render(tmp_path, list(steps(3)), label_names=["a", "b", "c"], train_lengths=[0, 3, 15, 16, 100, 100], **more)
    page = counted(train_counts=[1, 6, 3])  # texts with several labels
    assert table_rows(section(page, "Training labels")) == [["label", "texts", "share"], ["b", "6", "100.0 %"], ["c", "3", "50.0 %"], ["a", "1", "16.7 %"]]
    of_words = counted(train_counts=[1, 6, 13], labels_words=True)
    assert table_rows(section(of_words, "Training labels")) == [["label", "words", "share"], ["c", "13", "65.0 %"], ["b", "6", "30.0 %"], ["a", "1", "5.0 %"]]
    assert table_rows(section(page, "Text lengths"))[1:] == [
        ["0 to 15", "3", "50.0 %"], ["16 to 31", "1", "16.7 %"], *[[f"{16 * i} to {16 * i + 15}", "0", "0.0 %"] for i in (2, 3, 4, 5)], ["96 to 111", "2", "33.3 %"]]
    for many in dict(train_lengths=[4] * 100), dict(labels_words=True):
        shares = [row[2] for row in table_rows(section(render(tmp_path, list(steps(3)), train_counts=[1] * 100, **many), "Training labels"))[1:]]
        assert shares == ["1.0 %"] * 60, "of all labels, not only of those shown"


def luminance(color):
    channels = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_lines_of_charts_have_a_contrast_of_three(tmp_path):
    """As WCAG 2.2, success criterion 1.4.11, asks of graphics: in light, in dark and in print."""
    style = re.search("<style>(.*?)</style>", render(tmp_path, []), re.S)[1]
    opacity = {name: float(value) for name, value in re.findall(r"svg \.(thin|link) {[^}]*opacity: ([.\d]+)", style)}
    assert set(opacity) == {"thin", "link"}
    themes = re.findall(r":root {(.*?)}", style, re.S)
    assert len(themes) == 3
    for theme in themes:
        colors = {name: value if len(value) == 7 else "#" + "".join(2 * c for c in value[1:]) for name, value in re.findall(r"--(\w+): (#\w+)", theme)}
        for name in ["grid", "muted", "bad", *[f"c{i}" for i in range(1, 9)]]:
            assert contrast(colors[name], colors["card"]) >= 3, (name, colors[name])
        for i in range(1, 9):
            for alpha in opacity.values():
                blend = "#" + "".join(f"{round(alpha * int(colors[f'c{i}'][k:k + 2], 16) + (1 - alpha) * int(colors['card'][k:k + 2], 16)):02x}" for k in (1, 3, 5))
                assert contrast(blend, colors["card"]) >= 3, (f"c{i}", alpha, contrast(blend, colors["card"]))
