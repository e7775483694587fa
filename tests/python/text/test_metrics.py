"""mezzo's classification report against scikit-learn: the same text, byte for byte, and the same numbers; its scores against
scikit-learn's and SciPy's."""
import math
import random
import re
import warnings

import _mezzo
import numpy
import pytest
import scipy.stats
import seqeval.metrics
import torch
from sklearn import metrics

NAMES = ["joy", "", "a", "怒り", "очень длинное название класса", "é", "😀 face", "a b", "e\u0301", "ｗｉｄｅ",
         "weighted avg", "مرحبا"]  # fmt: skip


def random_case(rng):
    count = rng.randint(1, 30)
    names = [rng.choice(NAMES) + str(rng.randint(0, 99)) for _ in range(count)]
    rows = rng.choice([1, 2, 7, 30, 200, 3000])
    present = rng.sample(range(count), rng.randint(1, count))  # the others are absent
    y_true = [rng.choice(present) for _ in range(rows)]
    guesses = present if rng.random() < 0.5 else range(count)
    skill = rng.random()
    y_pred = [label if rng.random() < skill else rng.choice(guesses) for label in y_true]
    return y_true, y_pred, names


@pytest.mark.parametrize("seed", range(400))
def test_equals_scikit_learn(seed):
    rng = random.Random(seed)
    y_true, y_pred, names = random_case(rng)
    digits = rng.choice([0, 1, 2, 2, 3, 4, 4, 6, 17, 20])
    text, accuracy, classes, macro, weighted, confusion = _mezzo.classification_report(y_true, y_pred, names, digits)
    present = [names[label] for label in sorted({*y_true, *y_pred})]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = metrics.classification_report(y_true, y_pred, target_names=present, digits=digits)
        scores = [metrics.precision_recall_fscore_support(y_true, y_pred, average=average) for average in (None, "macro", "weighted")]
    if accuracy == 0:  # then, and only then, scikit-learn 1.9 counts supports in floating point: 3.0 for 3
        expected = re.sub(r"( +)(\d+)\.0$", r"\1  \2", expected, flags=re.MULTILINE)
    assert text == expected
    assert accuracy == pytest.approx(metrics.accuracy_score(y_true, y_pred), abs=1e-12)
    numpy.testing.assert_allclose(numpy.array(classes), numpy.stack(scores[0], axis=1), atol=1e-12)
    numpy.testing.assert_allclose(macro[:3], scores[1][:3], atol=1e-12)
    numpy.testing.assert_allclose(weighted[:3], scores[2][:3], atol=1e-12)
    assert (numpy.array(confusion) == metrics.confusion_matrix(y_true, y_pred, labels=range(len(names)))).all()


def test_adds_as_numpy_does_beyond_one_block_of_its_sum():
    rng = random.Random(0)
    for count in [127, 128, 129, 300, 1000]:
        y_true = [*range(count), *(rng.randrange(count) for _ in range(5000))]
        y_pred = [label if rng.random() < 0.7 else rng.randrange(count) for label in y_true]
        names = [str(i) for i in range(count)]
        expected = metrics.classification_report(y_true, y_pred, target_names=names, digits=18)
        assert _mezzo.classification_report(y_true, y_pred, names, 18)[0] == expected


ROUNDING = dict(rel=1e-12, abs=1e-12)  # sums of some thousand doubles, in another order


def columns(rng):
    """Of which many values are equal, or none, or all."""
    rows = rng.choice([1, 2, 3, 30, 3000])
    kinds = rng.choice([1, 2, 5, 10**9])
    return [[rng.randrange(kinds) / kinds for _ in range(rows)] for _ in range(2)]


@pytest.mark.parametrize("seed", range(100))
def test_scores_of_columns(seed):
    rng = random.Random(seed)
    x, y = columns(rng)
    share = rng.choice([0, 0.02, 0.5, 1])
    positive = [int(rng.random() < share) for _ in x]
    assert _mezzo.mean_squared_error(x, y) == pytest.approx(metrics.mean_squared_error(x, y), **ROUNDING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns that are constant
        pearson, spearman = (f(x, y).statistic if len(x) > 1 else math.nan for f in (scipy.stats.pearsonr, scipy.stats.spearmanr))
        area = metrics.roc_auc_score(positive, x)
        precision = metrics.average_precision_score(positive, x)
    assert _mezzo.pearson(x, y) == pytest.approx(pearson, nan_ok=True, **ROUNDING)
    assert _mezzo.spearman(x, y) == pytest.approx(spearman, nan_ok=True, **ROUNDING)
    assert _mezzo.roc_auc(positive, x) == pytest.approx(area, nan_ok=True, **ROUNDING)
    assert _mezzo.average_precision(positive, x) == pytest.approx(precision, nan_ok=True, **ROUNDING)


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 8, 15, 16])  # whose bounds and the confidences are distinct, or bit-identical
def test_calibration_error_is_that_of_its_definition(bins):
    rng = numpy.random.default_rng(bins)
    confidences, right = rng.integers(0, 1025, 1000) / 1024, rng.random(1000) < 0.7
    bounds = numpy.linspace(0, 1, bins + 1)
    expected = 0
    for low, high in zip(bounds, bounds[1:]):
        taken = (confidences > low) & (confidences <= high) | (confidences == 0) & (low == 0)
        if taken.any():
            expected += taken.mean() * abs(confidences[taken].mean() - right[taken].mean())
    found = _mezzo.expected_calibration_error(confidences.tolist(), right.astype(int).tolist(), bins)
    assert found == pytest.approx(expected, **ROUNDING)


def expected_of_single_labels(targets, outputs):
    """scikit-learn's default result. It refuses average precision of more than two classes if some have no row: then the mean
    over the classes of y_true."""
    labels = outputs.shape[1]
    is_, predicted, probabilities = targets.numpy(), outputs.argmax(1).numpy(), torch.softmax(outputs.double(), 1).numpy()
    present = numpy.unique(is_)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if labels == 2:
            roc_auc, precision = (f(is_, probabilities[:, 1]) for f in (metrics.roc_auc_score, metrics.average_precision_score))
        else:
            roc_auc = metrics.roc_auc_score(is_, probabilities, multi_class="ovr", labels=range(labels))
            precision = (metrics.average_precision_score(is_, probabilities) if len(present) == labels else
                         metrics.average_precision_score(is_[:, None] == present, probabilities[:, present]))
        return dict(accuracy=metrics.accuracy_score(is_, predicted),
                    macro_f1=metrics.f1_score(is_, predicted, average="macro"),
                    weighted_f1=metrics.f1_score(is_, predicted, average="weighted"),
                    balanced_accuracy=metrics.balanced_accuracy_score(is_, predicted),
                    matthews_corrcoef=metrics.matthews_corrcoef(is_, predicted),
                    log_loss=metrics.log_loss(is_, probabilities, labels=range(labels)),
                    roc_auc=roc_auc, average_precision=precision)


def check_single_labels(targets, outputs):
    found, report = _mezzo.evaluate("single_label_classification", outputs, targets, [str(i) for i in range(outputs.shape[1])])
    expected, predicted = expected_of_single_labels(targets, outputs), outputs.argmax(1)
    confidences = torch.softmax(outputs.double(), 1).amax(1)
    assert found.pop("expected_calibration_error") == pytest.approx(
        _mezzo.expected_calibration_error(confidences.tolist(), (predicted == targets).int().tolist(), 15), **ROUNDING)
    assert found.pop("loss") == pytest.approx(expected["log_loss"], rel=1e-5, abs=1e-6)  # in float32
    assert found == pytest.approx(expected, nan_ok=True, **ROUNDING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert expected["accuracy"] == 0 or report == metrics.classification_report(targets, predicted)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_evaluation_of_single_labels(seed):
    """Of two labels or more; with some seeds the last ones have no row, or probabilities are equal."""
    rng = numpy.random.default_rng(seed)
    labels, rows = 2 if seed % 4 == 0 else int(rng.integers(2, 12)), int(rng.choice([1, 5, 400]))
    targets = torch.from_numpy(rng.integers(0, max(1, labels - seed % 3), rows))
    outputs = torch.from_numpy(rng.normal(size=(rows, labels)).astype(numpy.float32)) * 3
    outputs[torch.arange(rows), targets] += 2
    check_single_labels(targets, outputs.round() if seed % 5 == 0 else outputs)


@pytest.mark.parametrize("targets, predicted, scores", [
    ([0, 1, 0, 1, 1], [0, 1, 0, 1, 0], dict(macro_f1=0.8, roc_auc=math.nan)),  # class 2 is absent
    ([0, 1, 0, 1], [0, 1, 2, 1], dict(macro_f1=5 / 9, balanced_accuracy=0.75)),  # class 2 is only predicted
    ([1], [1], dict(macro_f1=1, roc_auc=math.nan, average_precision=1, matthews_corrcoef=0)),
    ([0, 0, 0], [0, 2, 0], dict(roc_auc=math.nan, balanced_accuracy=2 / 3)),
])  # fmt: skip
def test_classes_without_rows_count_as_scikit_learn_counts_them(targets, predicted, scores):
    outputs = torch.nn.functional.one_hot(torch.tensor(predicted), 3).float()
    found = check_single_labels(torch.tensor(targets), outputs)
    assert {name: found[name] for name in scores} == pytest.approx(scores, nan_ok=True)


@pytest.mark.parametrize("targets, scores", [([0, 1, 0, 1], dict(roc_auc=0.75)), ([0, 0, 0, 0], dict(roc_auc=math.nan, average_precision=0)),
                                             ([1, 1, 1, 1], dict(roc_auc=math.nan, average_precision=1))])
def test_of_two_labels_the_second_is_the_positive_one(targets, scores):
    outputs = torch.tensor([[0.0, -2.0], [0.0, -1.0], [0.0, -0.5], [0.0, 3.0]])
    found = check_single_labels(torch.tensor(targets), outputs)
    assert {name: found[name] for name in scores} == pytest.approx(scores, nan_ok=True)


def several_labels(seed):
    """Targets, outputs and names of rows with any number of labels, none among them; with some seeds no row has the last label, or
    all have."""
    rng = numpy.random.default_rng(seed)
    labels, rows = int(rng.integers(1, 9)), int(rng.choice([1, 2, 5, 300]))
    targets = (rng.random((rows, labels)) < rng.random(labels)).astype(numpy.float32)
    if seed % 3:
        targets[:, -1] = seed % 3 - 1
    outputs = torch.from_numpy((rng.normal(size=(rows, labels)) * 2 + 2 * targets - 1).astype(numpy.float32))
    return torch.from_numpy(targets), outputs, [f"label {i}" for i in range(labels)]


@pytest.mark.parametrize("seed", range(60))
def test_evaluation_of_several_labels(seed):
    targets, outputs, names = several_labels(seed)
    rows, labels = targets.shape
    found, report = _mezzo.evaluate("multi_label_classification", outputs, targets, names)
    probabilities = torch.sigmoid(outputs.double()).numpy()
    is_label, predicted = targets.numpy() > 0, probabilities >= 0.5
    # scikit-learn takes one column for binary labels: a second, of which nothing is, makes it several again.
    wide = [numpy.hstack([flags, numpy.zeros((rows, 1), bool)]) for flags in (is_label, predicted)] if labels == 1 else [is_label, predicted]
    only = dict(labels=[0]) if labels == 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f1 = {average: metrics.f1_score(*wide, average=average, **only) for average in ("micro", "macro", "weighted", "samples")}
        expected = {f"{average}_f1": value for average, value in f1.items()} | dict(
            accuracy=metrics.accuracy_score(is_label, predicted),
            hamming_loss=metrics.hamming_loss(is_label, predicted),
            roc_auc=metrics.roc_auc_score(is_label, probabilities),
            average_precision=metrics.average_precision_score(is_label, probabilities))
        text = metrics.classification_report(*wide, target_names=names, **only)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs.double(), targets.double()).item()
    assert found.pop("loss") == pytest.approx(loss, rel=1e-5, abs=1e-6)  # in float32
    assert found == pytest.approx(expected, nan_ok=True, **ROUNDING)
    assert report == text


@pytest.mark.parametrize("seed", range(40))
def test_the_shift_gives_each_label_the_most_f1_at_one_half(seed):
    targets, outputs, names = several_labels(seed)
    if seed % 4 == 0:
        outputs = outputs.round()  # many equal ones
    is_label, probabilities = targets.numpy() > 0, torch.sigmoid(outputs.double()).numpy()
    for label, threshold in enumerate(torch.sigmoid(-_mezzo.tuned_shift(outputs, targets, names)).tolist()):
        column = probabilities[:, label]
        if not is_label[:, label].any():
            assert threshold == pytest.approx(0.5)
            continue
        tried = numpy.append(column, threshold)  # each a column of predictions, which scikit-learn scores at once
        f1 = metrics.f1_score(numpy.tile(is_label[:, [label]], len(tried)), column[:, None] >= tried, average=None, zero_division=0)
        assert f1[-1] == f1.max()
        above, below = column[column >= threshold].min(), column[column < threshold]
        # The way through the logarithm and back rounds in double.
        assert threshold == pytest.approx((above + (below.max() if len(below) else 0)) / 2, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_evaluation_of_numbers(seed):
    rng = numpy.random.default_rng(seed)
    rows = int(rng.choice([1, 2, 300]))
    targets = torch.from_numpy(rng.normal(size=rows).astype(numpy.float32)) * 10.0 ** int(rng.integers(-3, 4))
    outputs = (targets + torch.from_numpy(rng.normal(size=rows).astype(numpy.float32))).unsqueeze(1)
    found, report = _mezzo.evaluate("regression", outputs, targets, ["LABEL_0"])
    is_, predicted = targets.double().numpy(), outputs.squeeze(1).double().numpy()
    error = metrics.mean_squared_error(is_, predicted)
    pearson, spearman = (f(is_, predicted).statistic if rows > 1 else math.nan for f in (scipy.stats.pearsonr, scipy.stats.spearmanr))
    assert found == pytest.approx(dict(loss=error, mean_squared_error=error, pearson=pearson, spearman=spearman), nan_ok=True, **ROUNDING)
    assert report.splitlines()[0].split() == ["mean", "squared", "error", f"{error:.6g}"]


@pytest.mark.parametrize("seed", range(30))
def test_entities_are_seqevals(seed):
    """Of labels that follow each other in any way, also where none is right, or there are none."""
    rng = random.Random(seed)
    types = ["PER", "LOC", "A-B", "O"][:rng.randint(1, 4)]
    labels = ["O", *(f"{place}-{kind}" for place in "BIES"[:rng.choice([2, 4])] for kind in types)]
    is_ = [rng.choices(labels, k=rng.randint(1, 12)) for _ in range(rng.choice([1, 40]))]
    predicted = [[label if rng.random() < seed / 30 else rng.choice(labels) for label in row] for row in is_]
    if not any(label != "O" for row in is_ + predicted for label in row):
        return
    assert _mezzo.entity_report(is_, predicted) == seqeval.metrics.classification_report(is_, predicted, digits=4)


LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


@pytest.mark.parametrize("seed", range(30))
def test_evaluation_of_words(seed):
    """Where labels tell entities, seqeval's numbers, else scikit-learn's; words without a label (-100) do not count."""
    rng = numpy.random.default_rng(seed)
    has_entities, texts, length = seed % 2 == 0, int(rng.choice([1, 30])), int(rng.choice([1, 9]))
    names = LABELS if has_entities else ["noun", "verb", "other", "rare"]
    targets = rng.integers(0, len(names) - seed % 3, (texts, length))  # some labels have no words
    outputs = rng.normal(size=(texts, length, len(names))).astype(numpy.float32) * 2
    outputs[*numpy.indices(targets.shape), targets] += seed % 4
    targets[rng.random(targets.shape) < 0.2] = -100
    targets[0, 0] = 1
    kept = targets >= 0
    found, report = _mezzo.evaluate("token_classification", torch.from_numpy(outputs), torch.from_numpy(targets.astype(numpy.int32)), names)
    found.pop("loss")
    predicted = outputs.argmax(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if has_entities:
            is_, said = ([[names[i] for i in row[keep]] for row, keep in zip(ids, kept)] for ids in (targets, predicted))
            expected = dict(f1=seqeval.metrics.f1_score(is_, said), precision=seqeval.metrics.precision_score(is_, said),
                            recall=seqeval.metrics.recall_score(is_, said), macro_f1=seqeval.metrics.f1_score(is_, said, average="macro"),
                            weighted_f1=seqeval.metrics.f1_score(is_, said, average="weighted"),
                            accuracy=seqeval.metrics.accuracy_score(is_, said))
            assert report == seqeval.metrics.classification_report(is_, said)
        else:
            is_, said = targets[kept], predicted[kept]
            expected = dict(accuracy=metrics.accuracy_score(is_, said), macro_f1=metrics.f1_score(is_, said, average="macro"),
                            weighted_f1=metrics.f1_score(is_, said, average="weighted"))
            present = [names[i] for i in sorted({*is_, *said})]
            assert expected["accuracy"] == 0 or report == metrics.classification_report(is_, said, target_names=present)
    assert found == pytest.approx(expected, **ROUNDING)
