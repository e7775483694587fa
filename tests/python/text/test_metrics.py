"""mezzo's classification report against scikit-learn: the same text, byte for byte, and the same numbers."""
import random
import re
import warnings

import _mezzo
import numpy
import pytest
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
    labels = range(len(names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = metrics.classification_report(y_true, y_pred, labels=labels, target_names=names, digits=digits,
                                                 zero_division=0)
        scores = [
            metrics.precision_recall_fscore_support(y_true, y_pred, labels=labels, average=average, zero_division=0)
            for average in (None, "macro", "weighted")
        ]
    if accuracy == 0:  # then, and only then, scikit-learn 1.9 counts supports in floating point: 3.0 for 3
        expected = re.sub(r"( +)(\d+)\.0$", r"\1  \2", expected, flags=re.MULTILINE)
    assert text == expected
    assert accuracy == pytest.approx(metrics.accuracy_score(y_true, y_pred), abs=1e-12)
    numpy.testing.assert_allclose(numpy.array(classes), numpy.stack(scores[0], axis=1), atol=1e-12)
    numpy.testing.assert_allclose(macro[:3], scores[1][:3], atol=1e-12)
    numpy.testing.assert_allclose(weighted[:3], scores[2][:3], atol=1e-12)
    assert (numpy.array(confusion) == metrics.confusion_matrix(y_true, y_pred, labels=labels)).all()


def test_adds_as_numpy_does_beyond_one_block_of_its_sum():
    rng = random.Random(0)
    for count in [127, 128, 129, 300, 1000]:
        y_true = [rng.randrange(count) for _ in range(5000)]
        y_pred = [label if rng.random() < 0.7 else rng.randrange(count) for label in y_true]
        names = [str(i) for i in range(count)]
        expected = metrics.classification_report(y_true, y_pred, labels=range(count), target_names=names, digits=18,
                                                 zero_division=0)
        assert _mezzo.classification_report(y_true, y_pred, names, 18)[0] == expected
