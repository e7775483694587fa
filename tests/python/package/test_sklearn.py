"""mezzo.sklearn.TextClassifier: scikit-learn's own checks of estimators, and its tools around one."""
import functools
import json
import pickle
import shutil
import tempfile
import warnings
from pathlib import Path

import mezzo
import numpy as np
import pytest
from mezzo.sklearn import TextClassifier
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from sklearn.utils.validation import validate_data

COLUMNS, BUCKETS = "ijklmnopqrst", "abcdefgh"
TEXTS = ["goal team goal", "law vote", "rain storm rain", "team", "vote law law", "storm"] * 4
TOPICS = ["sport", "politics", "weather"] * 8


def model_of(words):
    """A folder with the files of a small model that knows the words, and learns fast."""
    folder = Path(tempfile.mkdtemp(prefix="mezzo-words-"))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    (folder / "config.json").write_text(json.dumps(dict(
        model_type="bert", vocab_size=len(tokens), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, initializer_range=0.3)))
    return folder


def small(kind, folder, **more):
    return kind(None, **dict(epochs=12, learning_rate=0.01, batch_size=4, max_length=16, precision="fp32") | more, settings=dict(
        model_config=folder / "config.json", vocab=folder / "vocab.txt", threads=1, dev_ratio=0, warmup_ratio=0, dropout=0))


@pytest.fixture(scope="module")
def tiny():
    folder = model_of("goal team law vote rain storm".split())
    yield functools.partial(small, TextClassifier, folder)
    shutil.rmtree(folder)


class OfNumbers(TextClassifier):
    """Reads rows of numbers as words, so that scikit-learn can check it with its data. Nothing else differs."""

    def fit(self, X, y):
        X, y = validate_data(self, X, y)
        return super().fit(self._words(X), y)

    def predict(self, X):
        return super().predict(self._words(validate_data(self, X, reset=False)))

    def predict_proba(self, X):
        return super().predict_proba(self._words(validate_data(self, X, reset=False)))

    def _words(self, X):
        """Of each number a word: its column and its bucket."""
        buckets = np.clip(np.floor(np.asarray(X, np.float64) * 2 + 4), 0, 7).astype(int)
        return [" ".join(COLUMNS[column % 12] + BUCKETS[bucket] for column, bucket in enumerate(row)) for row in buckets]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


# Made when tests are collected, as scikit-learn wants to see the estimators then.
NUMBERS = model_of(column + bucket for column in COLUMNS for bucket in BUCKETS)


def teardown_module():
    shutil.rmtree(NUMBERS)


@parametrize_with_checks([small(OfNumbers, NUMBERS, epochs=6, batch_size=16, learning_rate=0.02)])
def test_passes_the_checks_of_estimators(estimator, check):
    check(estimator)


def test_says_that_it_reads_texts_which_scikit_learn_has_no_checks_for():
    with pytest.warns(SkipTestWarning, match="requires input  of type"):
        check_estimator(TextClassifier())


@pytest.mark.parametrize("labels", [TOPICS, [7, -1, 10] * 8, [True, False, True] * 8], ids=["str", "int", "bool"])
def test_labels_keep_their_kind_and_order(labels, tiny):
    classifier = tiny().fit(np.array(TEXTS, object), labels)
    assert classifier.classes_.tolist() == sorted(set(labels)) and classifier.classes_.dtype == np.array(labels).dtype
    assert classifier.predict(TEXTS[:6]).tolist() == labels[:6] and classifier.score(TEXTS, labels) == 1
    probabilities = classifier.predict_proba(TEXTS[:6])
    assert probabilities.shape == (6, len(classifier.classes_)) and (classifier.classes_[probabilities.argmax(1)] == labels[:6]).all()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    theirs = mezzo.Classifier(classifier.folder_, precision="fp32")
    assert theirs.labels == [str(label) for label in classifier.classes_]
    np.testing.assert_array_equal(theirs.predict_proba(TEXTS[:6]), probabilities)


def test_folders_go_without_a_warning(tiny, tmp_path, monkeypatch):
    """With the classifier, with the next fit, and if a fit or the loading of a pickle fails."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier = tiny(epochs=1).fit(TEXTS, TOPICS)
        classifier.fit(TEXTS, TOPICS)
        assert [*tmp_path.iterdir()] == [Path(classifier.folder_)]
        with pytest.raises(ValueError, match="learning-rate"):
            clone(classifier).set_params(learning_rate=-1).fit(TEXTS, TOPICS)
        assert [*tmp_path.iterdir()] == [Path(classifier.folder_)]
        saved = pickle.dumps(classifier.set_params(device="abacus"))
        with pytest.raises(ValueError, match="--device 'abacus' is not known"):
            pickle.loads(saved)
        assert [*tmp_path.iterdir()] == [Path(classifier.folder_)]
        del classifier
        assert [*tmp_path.iterdir()] == []
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


def test_is_pickled_with_its_weights_and_cloned_without(tiny):
    classifier = tiny().fit(TEXTS, TOPICS)
    expected = classifier.predict_proba(TEXTS)
    saved = pickle.dumps(classifier)
    folder = Path(classifier.folder_)
    assert not (folder / "checkpoints").exists() and folder.exists()
    with pytest.raises(NotFittedError):
        clone(classifier).predict(TEXTS)
    del classifier
    assert not folder.exists()
    again = pickle.loads(saved)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), expected)
    assert again.history_[-1]["event"] == "end" and again.folder_ != str(folder)


def test_works_in_pipelines_searches_and_cross_validation(tiny):
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]), tiny())
    texts = [text.upper() for text in TEXTS]
    search = GridSearchCV(pipeline, {"textclassifier__learning_rate": [1e-7, 0.01]}, cv=2).fit(texts, TOPICS)
    assert search.best_params_ == {"textclassifier__learning_rate": 0.01} and search.best_score_ == 1
    assert search.predict(texts[:3]).tolist() == TOPICS[:3]
    assert (cross_val_score(pipeline, texts, TOPICS, cv=3) > 0.8).all()
    assert (cross_val_score(tiny(), TEXTS, TOPICS, cv=2, n_jobs=2) > 0.8).all()  # pickled to other processes


def test_the_random_state_decides(tiny):
    states = [3, 3, 4, np.random.RandomState(0), np.random.RandomState(0)]
    found = [tiny(epochs=1, random_state=state).fit(TEXTS, TOPICS).predict_proba(TEXTS) for state in states]
    assert (found[0] == found[1]).all() and (found[3] == found[4]).all()
    assert not (found[0] == found[2]).all() and not (found[0] == found[3]).all()


def test_a_fit_that_fails_leaves_the_classifier_as_it_was(tiny):
    classifier = tiny().fit(TEXTS, TOPICS)
    with pytest.raises(ValueError, match="learning-rate"):
        classifier.set_params(learning_rate=-1).fit(TEXTS, ["a", "b", "c"] * 8)
    assert classifier.predict(TEXTS[:3]).tolist() == TOPICS[:3]


def test_wrong_input_is_refused(tiny):
    classifier = tiny()
    for X, y, message in [
        ("goal", ["a"], "X is one str, expected several texts; pass a list"),
        (np.array([TEXTS]), TOPICS, "X has 2 dimensions, expected texts in one"),
        ([], [], "X has no texts"),
        (TEXTS, TOPICS[1:], "inconsistent numbers of samples"),
        (TEXTS, None, "requires y to be passed"),
        (TEXTS, ["a"] * len(TEXTS), "y has 1 class, 'a'; TextClassifier needs at least 2 classes"),
        (TEXTS, ["a\nb", "c", "d"] * 8, r"labels has 'a\\nb'; a name has a character, and no line break"),
        (TEXTS, ["", "c", "d"] * 8, "labels has ''; a name has a character"),
        (TEXTS, np.linspace(0, 1, len(TEXTS)), "continuous"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            classifier.fit(X, y)
    with pytest.raises(TypeError, match=r"X\[0\] is a float, expected a str"):
        classifier.fit([0.5, *TEXTS[1:]], TOPICS)
    for settings, error, message in [
        (dict(folds=3), ValueError, "settings has 'folds', which leaves no model to predict with"),
        (dict(help=True), ValueError, "settings has 'help', which leaves no model to predict with"),
        (dict(output="out"), ValueError, "settings has 'output', which fit sets by itself"),
        ([1], TypeError, "settings is a list, expected a Mapping"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            TextClassifier(settings=settings).fit(TEXTS, TOPICS)
    with pytest.raises(ValueError, match="Did you mean '--learning-rate'"):
        TextClassifier(settings=dict(learning_rat=1)).fit(TEXTS, TOPICS)
