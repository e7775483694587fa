# mypy: disable-error-code="import-untyped"
"""A classifier of texts for scikit-learn, which this module alone imports."""

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted

from mezzo._errors import checked
from mezzo._train import train
from mezzo.text import Classifier, _list_of

__all__ = ["TextClassifier"]


class TextClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Fine-tunes a pretrained model on texts with one label each: ``mezzo.train`` and ``mezzo.Classifier`` as an estimator.

    Works in Pipeline, GridSearchCV and cross_val_score. A fitted classifier is pickled with its weights. `fit` sets a part of the
    texts aside and keeps the model that is best on it; ``settings={"dev_ratio": 0}`` trains on all texts.

    Args:
        model: folder of a model, or its name on the Hugging Face Hub.
        epochs: passes over the texts. None: 3, or up to 20 for few texts.
        learning_rate: peak learning rate. None: by the model's size.
        batch_size: texts per step. None: 32.
        max_length: longest text, in tokens. None: at most 1 % of the texts are cut.
        precision: "fp32", "bf16", "fp16" or "auto".
        device: "cpu", "cuda", "cuda:N" or "auto".
        random_state: seed of shuffling, dropout and fresh weights; a RandomState gives one. None: 123.
        verbose: whether the progress is shown.
        settings: further settings of ``mezzo.train``.

    Attributes:
        classes_: the labels, sorted, of y's dtype: ``[labels]``.
        metrics_: the last evaluation, on the texts that `fit` set aside.
        history_: the records of all steps and evaluations.
        folder_: the model's folder, which is deleted with this object. Copy it to keep the model.
    """

    def __init__(self, model: Any = "bert-base-uncased", *, epochs: float | None = None, learning_rate: float | None = None,
                 batch_size: int | None = None, max_length: int | None = None, precision: str = "auto", device: str = "auto",
                 random_state: int | np.random.RandomState | None = None, verbose: bool = False,
                 settings: Mapping[str, Any] | None = None) -> None:
        self.model = model
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_length = max_length
        self.precision = precision
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.settings = settings

    def fit(self, X: Iterable[str], y: ArrayLike) -> "TextClassifier":
        """Trains on texts `X` and their labels `y`: ``[texts]`` each, and at least two different labels.

        Raises:
            ValueError: for other texts or labels, or a wrong setting.
            RuntimeError: for a training that failed.
        """
        texts = _texts(X)
        if y is None:
            raise ValueError("TextClassifier requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        check_consistent_length(texts, labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        names = [str(label) for label in classes]
        if len(names) < 2:
            raise ValueError(f"y has 1 class, {names[0]!r}; TextClassifier needs at least 2 classes")
        settings = dict(checked(self.settings or {}, Mapping, "settings"))
        if without := [name for name in ("dry_run", "folds", "help", "help_all", "pause_at") if settings.get(name)]:
            raise ValueError(f"settings has {without[0]!r}, which leaves no model to predict with")
        if taken := [name for name in ("train", "labels", "task", "output") if name in settings]:
            raise ValueError(f"settings has {taken[0]!r}, which fit sets by itself")
        seed = self.random_state
        if isinstance(seed, np.random.RandomState):
            seed = int(check_random_state(seed).randint(2**31))
        given = dict(model=self.model, epochs=self.epochs, learning_rate=self.learning_rate, batch_size=self.batch_size,
                     max_length=self.max_length, precision=self.precision, device=self.device, seed=seed, quiet=not self.verbose)
        folder = tempfile.mkdtemp(prefix="mezzo-")
        try:
            result = train(train=[{"text": text, "label": names[number]} for text, number in zip(texts, numbers)], labels=names,
                           task="single_label_classification", output=folder, **given | settings)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(result.folder / "checkpoints", ignore_errors=True)
        self._load(folder)
        self.classes_, self.metrics_, self.history_ = classes, result.metrics, result.history
        return self

    def predict(self, X: Iterable[str]) -> NDArray[Any]:
        """The most probable label of each text: ``[texts]``."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self._classifier.logits(_texts(X)).argmax(1)])

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float32]:
        """The probability of each of `classes_`: ``[texts, labels]``, float32."""
        check_is_fitted(self)
        return self._classifier.predict_proba(_texts(X))

    def _load(self, folder: str) -> None:
        try:
            self._classifier, self.folder_ = Classifier(folder, precision=self.precision, device=self.device), folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        weakref.finalize(self._classifier, shutil.rmtree, folder, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "_classifier" in state:
            state = {name: value for name, value in state.items() if name not in ("folder_", "_classifier")}
            state["_files"] = {path.name: path.read_bytes() for path in Path(self.folder_).iterdir() if path.is_file()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files", None)
        super().__setstate__(state)
        if files is not None:
            folder = tempfile.mkdtemp(prefix="mezzo-")
            for name, contents in files.items():
                Path(folder, name).write_bytes(contents)
            self._load(folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(X: Iterable[str]) -> list[str]:
    if isinstance(X, str):
        raise ValueError("X is one str, expected several texts; pass a list")
    if (dimensions := getattr(X, "ndim", 1)) != 1:
        raise ValueError(f"X has {dimensions} dimensions, expected texts in one; pass a single column")
    texts = _list_of(X, "X")
    if not texts:
        raise ValueError("X has no texts")
    return texts
