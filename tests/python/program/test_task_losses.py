"""Losses weighted by class, smoothed and focal: curves equal the curves of a PyTorch loop with PyTorch's own functions."""
import json
import math
import random
from collections import Counter

import numpy
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from support import mezzo, records
from test_tasks import NAMES, folders, make_rows  # noqa: F401: a fixture
from test_training import BATCH, STEPS, WORDS, largest_difference, reference_losses, train
from tiny_runs import run
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

SINGLE, SEVERAL = "single_label_classification", "multi_label_classification"


def rare_rows():
    """Texts of three labels, of which one is rare."""
    rng = random.Random(1)
    rows = []
    for _ in range(STEPS * BATCH):
        label = rng.choices(range(3), weights=[6, 3, 1])[0]
        words = rng.choices(WORDS, weights=[5 if i % 3 == label else 1 for i in range(len(WORDS))], k=rng.randint(2, 16))
        rows.append((" ".join(words), label))
    return rows


@pytest.fixture(scope="module", params=[SINGLE, SEVERAL])
def task(request, folders, tmp_path_factory):  # noqa: F811
    """Its name, a folder of a model, and its rows, in a file and as PyTorch takes them."""
    name, folder = request.param, tmp_path_factory.mktemp("rows")
    if name == SEVERAL:
        rows = make_rows(several=True)
        flags = [(text, [float(label in labels) for label in NAMES]) for text, labels in rows]
    else:
        rows = flags = rare_rows()
    (folder / "train.json").write_text(json.dumps(rows))
    model = folders[SEVERAL]
    if name == SINGLE:  # the same weights; its labels are named by numbers
        for file in model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((model / "config.json").read_text())
        config.update(problem_type=SINGLE, id2label={str(i): str(i) for i in range(3)}, label2id={str(i): i for i in range(3)})
        (folder / "config.json").write_text(json.dumps(config))
        model = folder
    return name, model, folder / "train.json", flags


def balanced(name, rows):
    labels = [label for _, label in rows]
    if name == SINGLE:
        return torch.tensor(compute_class_weight("balanced", classes=numpy.arange(3), y=numpy.array(labels)), dtype=torch.float32)
    # Of each label against its absence, by the same rule: the ratio of the two weights.
    return torch.tensor([numpy.divide(*compute_class_weight("balanced", classes=numpy.arange(2), y=numpy.array(column))[::-1])
                         for column in numpy.array(labels, dtype=int).T], dtype=torch.float32)


def focal(logits, target, gamma):
    """Of log probabilities in float64: of those here 1 - p loses nothing that matters."""
    p = logits.double().softmax(1).gather(1, target[:, None]).squeeze(1)
    return (-(1 - p) ** gamma * p.log()).float()


def binary_focal(logits, target, gamma):
    p = logits.double().sigmoid()
    p = torch.where(target == 1, p, 1 - p)
    return (-(1 - p) ** gamma * p.log()).float()


def check(task, tmp_path, loss_sum, *flags, accumulation=1):
    name, model, path, rows = task
    losses, _ = train(model, (path, rows), tmp_path / "out", "--precision", "fp32", "--learning-rate", 2e-3, "--max-grad-norm", 1,
                      "--grad-accumulation", accumulation, *flags)
    expected, _, _ = reference_losses(model, rows, lr=2e-3, max_norm=1.0, loss_sum=loss_sum, accumulation=accumulation)
    plain, _, _ = reference_losses(model, rows, lr=2e-3, max_norm=1.0, accumulation=accumulation, loss_sum=(
        (lambda logits, labels: cross_entropy(logits, labels, reduction="sum")) if name == SINGLE else
        (lambda logits, labels: binary_cross_entropy_with_logits(logits, labels) * len(labels))))
    assert accumulation > 1 or sum(expected[-5:]) < 0.95 * sum(expected[:5]), "a curve that goes somewhere"
    assert largest_difference(expected, plain) > 1e-2, "and another than without"
    assert largest_difference(losses, expected) < 1e-4


@pytest.mark.parametrize("accumulation", [1, 3])
def test_balanced_weights_are_scikit_learns(task, tmp_path, accumulation):
    name, _, _, rows = task
    weights = balanced(name, rows)
    if name == SINGLE:
        def loss(logits, labels):
            return cross_entropy(logits, labels, weight=weights, reduction="sum")
    else:
        def loss(logits, labels):
            return binary_cross_entropy_with_logits(logits, labels, pos_weight=weights) * len(labels)
    check(task, tmp_path, loss, "--class-weights", "balanced", accumulation=accumulation)


def test_given_weights_and_smoothing(task, tmp_path):
    weights = torch.tensor([1, 2.5, 7])
    names = ["0", "1", "2"] if task[0] == SINGLE else NAMES
    if task[0] == SINGLE:
        def loss(logits, labels):
            return cross_entropy(logits, labels, weight=weights, label_smoothing=0.1, reduction="sum")
    else:
        def loss(logits, labels):
            return binary_cross_entropy_with_logits(logits, labels * 0.9 + 0.05, pos_weight=weights) * len(labels)
    check(task, tmp_path, loss, "--class-weights", f"{names[2]}=7,{names[1]}=2.5", "--label-smoothing", 0.1)


@pytest.mark.parametrize("gamma", [0.5, 2])
def test_focal_loss(task, tmp_path, gamma):
    weights = torch.tensor([3.0, 1, 1])
    if task[0] == SINGLE:
        def loss(logits, labels):
            return (focal(logits, labels, gamma) * weights[labels]).sum()
    else:
        def loss(logits, labels):
            return (binary_focal(logits, labels, gamma) * torch.where(labels == 1, weights, 1)).mean(1).sum()
    check(task, tmp_path, loss, "--focal-gamma", gamma, "--class-weights", "0=3" if task[0] == SINGLE else f"{NAMES[0]}=3")


def test_evaluations_measure_the_plain_loss_and_a_resumed_run_the_same(task, tmp_path):
    name, model, path, rows = task
    flags = ["train", "--model", model, "--train", path, "--dev-ratio", 0.2, "--precision", "fp32", "--max-steps", 12, "--eval-every", 6,
             "--batch-size", BATCH, "--save-every", 6, "--class-weights", "balanced", "--focal-gamma", 1]
    mezzo(*flags, "--output", tmp_path / "out")
    said = json.loads(mezzo("eval", "--model", tmp_path / "out", "--data", path, "--precision", "fp32", "--json").stdout)
    lines = mezzo("predict", "--model", tmp_path / "out", "--data", path, "--precision", "fp32", "--logits").stdout.splitlines()
    logits = torch.tensor([json.loads(line)["logits"] for line in lines])
    labels = torch.tensor([label for _, label in rows])
    plain = cross_entropy(logits, labels) if name == SINGLE else binary_cross_entropy_with_logits(logits, labels)
    assert said["loss"] == pytest.approx(plain.item(), rel=1e-5)
    mezzo(*flags, "--output", tmp_path / "again", "--resume", tmp_path / "out/checkpoints/step-6")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (tmp_path / "out/model.safetensors").read_bytes()
    done = run([*flags[:-1], 2, "--output", tmp_path / "other", "--resume", tmp_path / "out/checkpoints/step-6"])
    assert done.returncode == 1 and "focal-gamma was '1', is now '2'" in done.stderr
    assert all(math.isfinite(record["loss"]) for record in records(tmp_path / "out", "eval"))


def test_a_class_without_a_text_weighs_one(tmp_path, task):
    """Of a label without a training text, "balanced" cannot tell a weight."""
    name, model, path, rows = task
    if name == SEVERAL:
        pytest.skip("of one label a text")
    some = [row for row in rows if row[1] != 2][:80]
    (tmp_path / "some.json").write_text(json.dumps(some))
    losses, _ = train(model, (tmp_path / "some.json", some), tmp_path / "out", "--precision", "fp32", "--class-weights", "balanced")
    counts = Counter(label for _, label in some)
    weights = torch.tensor([len(some) / (2 * counts[label]) for label in (0, 1)] + [1.0])
    expected, _, _ = reference_losses(model, some, loss_sum=lambda logits, labels: cross_entropy(logits, labels, weight=weights, reduction="sum"))
    assert largest_difference(losses, expected) < 1e-4


@pytest.mark.parametrize("flags, message", [
    (["--class-weights", "balancd"], "--class-weights: 'balancd' is not NAME=WEIGHT; pass balanced, or weights such as rare=5,common=1"),
    (["--class-weights", "0=2,"], "--class-weights: '' is not NAME=WEIGHT"),
    (["--class-weights", "0=2,1"], "--class-weights: '1' is not NAME=WEIGHT"),
    (["--class-weights", "0=0"], "--class-weights: the weight of '0' is 0, expected a number from 1e-06 to 1e+06"),
    (["--class-weights", "0=inf"], "--class-weights: the weight of '0' is inf"),
    (["--class-weights", "0=1,0=2"], "--class-weights: '0' has two weights"),
    (["--class-weights", "7=2"], "--class-weights: label '7' is not known: 0, 1, 2"),
    (["--label-smoothing", "1"], "--label-smoothing is 1"),
    (["--label-smoothing", "nan"], "--label-smoothing is nan"),
    (["--focal-gamma", "-1"], "--focal-gamma is -1"),
    (["--focal-gamma", "1", "--label-smoothing", "0.1"], "--label-smoothing and --focal-gamma are two losses"),
    (["--task", "regression", "--new-head", "--focal-gamma", "1"], "regression has numbers"),
])
def test_wrong_settings_are_refused(flags, message, task, tmp_path):
    name, model, path, _ = task
    if name == SEVERAL:
        pytest.skip("settings are checked alike")
    done = run(["train", "--model", model, "--train", path, "--output", tmp_path / "out", *flags])
    assert done.returncode in (1, 2) and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
