"""Classifiers of texts, and tokenizers, as the program has them."""

import functools
import json
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from mezzo import _library
from mezzo._errors import checked, int64, translated

__all__ = ["Classifier", "Tokenizer"]

_ROWS_AT_A_TIME = 16384  # as mezzo predict


def _refuse_tables(texts: object, name: str) -> None:
    """A table's or a dict's items are the names of its columns."""
    if isinstance(texts, Mapping) or getattr(texts, "ndim", 1) != 1 or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is a {type(texts).__name__}, expected a str, or a list or column of them")


def _list_of(texts: str | Iterable[str], name: str) -> list[str]:
    _refuse_tables(texts, name)
    found = [texts] if isinstance(texts, str) else list(texts)
    for i, text in enumerate(found):
        _encoded_one(checked(text, str, f"{name}[{i}]"), f"{name}[{i}]")
    return found


def _path_of(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], name: str) -> str:
    found = os.fsdecode(checked(path, (str, bytes, os.PathLike), name))
    if not found:
        raise ValueError(f"{name} is empty")
    _encoded_one(found, name)
    if "\0" in found:
        raise ValueError(f"{name} is {found!r}; a path has no null characters")
    return found


class Classifier:
    """A trained classifier of texts, of pairs of texts, or of words: what ``mezzo predict`` runs.

    Any number of threads may share a classifier. Calls release the GIL, and one of them computes at a time, with the threads of
    ``torch.set_num_threads``. A text that is longer than `max_length` loses its end, with a warning. A pickled classifier holds
    the folder's path, not the model.

    Args:
        model: folder of a model, or its name on the Hugging Face Hub: NAME, ORG/NAME, NAME@REVISION.
        precision: number format of the computation: "fp32", "bf16", "fp16", "int8" on a CPU, or "auto", the fastest of the first
            three that the device computes well.
        device: "cpu", "cuda", "cuda:N", or "auto", the first GPU if there is one.
        max_length: longest text, in tokens. None: as in training.

    Raises:
        ValueError: for a folder without a trained classifier, or a wrong argument.
        FileNotFoundError: for a missing file; OSError for one that cannot be read.
    """

    def __init__(self, model: str | os.PathLike[str], *, precision: str = "auto", device: str = "auto",
                 max_length: int | None = None) -> None:
        ops = _library.load()
        precision, device = str(precision), str(device)  # torch.device is welcome
        max_length = None if max_length is None else int64(max_length)
        with translated(), torch.inference_mode(False):  # weights without versions cannot be packed
            ops.check_classifier_options(precision, device, max_length)
            folder: str = ops.find_model(_path_of(model, "model"), False)
            self._folder = os.path.abspath(folder)
            self._options: dict[str, Any] = dict(precision=precision, device=device, max_length=max_length)
            self._classifier: Any = torch.classes.mezzo.Classifier(folder, precision, device, max_length)
            unchecked = ops.int8_warning(folder) if precision == "int8" else ""
        if unchecked:
            warnings.warn(unchecked, stacklevel=2)
        if unused := self._classifier.unused():
            warnings.warn(f"in {folder}, but not used: {', '.join(unused)}", stacklevel=2)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._options), (self._folder,)

    @property
    def labels(self) -> list[str]:
        """The names of the labels, in the order of the outputs."""
        return list(self._classifier.labels())

    @property
    def task(self) -> str:
        """"single_label_classification", "multi_label_classification", "regression" or "token_classification"."""
        return str(self._classifier.task())

    @property
    def precision(self) -> str:
        """The number format of the computation: "fp32", "bf16", "fp16" or "int8"."""
        return str(self._classifier.precision())

    @property
    def max_length(self) -> int:
        """Most tokens of a text that the model reads."""
        return int(self._classifier.max_length())

    def predict(self, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None = None) -> list[dict[str, Any]]:
        """What ``mezzo predict`` writes of each text, as a dict.

        A single label: ``{"text": …, "label": "sport", "score": 0.9, "scores": {"politics": 0.1, "sport": 0.9}}``. Several labels have
        ``labels`` in place of ``label`` and ``score``, a regression has ``value``, and words have ``words``, ``labels`` and,
        for tags of entities, ``entities``.

        Args:
            texts: the texts; a str is one.
            text_pairs: the second texts of pairs, as many.

        Raises:
            ValueError: for texts that the model does not read.
            TypeError: for a text that is not a str.
            RuntimeError: for outputs of inf or NaN.
        """
        return [json.loads(line) for lines in self._run(self._classifier.predict, texts, text_pairs) for line in lines]

    def logits(self, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None = None) -> NDArray[np.float32]:
        """The outputs of the model: float32, ``[texts, labels]``.

        Has the arguments and errors of `predict`; ValueError also for a model that labels words.
        """
        if self.task == "token_classification":
            raise ValueError("the model labels words; call predict(), which gives the labels of each text's words")
        outputs = self._run(self._classifier.outputs, texts, text_pairs)
        return torch.cat(outputs).numpy() if outputs else np.empty((0, len(self.labels)), np.float32)

    def predict_proba(self, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None = None) -> NDArray[np.float32]:
        """The probability of each label: float32, ``[texts, labels]``. A row's sum is 1 if a text has a single label.

        Has the arguments and errors of `logits`; ValueError also for a regression.
        """
        if self.task == "regression":
            raise ValueError("the model is trained for regression, which has no probabilities; call logits()")
        outputs = torch.from_numpy(self.logits(texts, text_pairs)).double()
        of_labels = torch.softmax(outputs, 1) if self.task == "single_label_classification" else torch.sigmoid(outputs)
        return of_labels.float().numpy()

    def _run(self, method: Any, texts: str | Iterable[str], text_pairs: str | Iterable[str] | None) -> list[Any]:
        """The method's results for chunks of the texts."""
        texts = _list_of(texts, "texts")
        pairs = [] if text_pairs is None else _list_of(text_pairs, "text_pairs")
        if text_pairs is not None and len(pairs) != len(texts):
            raise ValueError(f"there are {len(texts)} texts and {len(pairs)} text_pairs; pass as many of both")
        results, truncated = [], 0
        is_main = threading.current_thread() is threading.main_thread()
        for begin in range(0, len(texts), _ROWS_AT_A_TIME):
            end, found = begin + _ROWS_AT_A_TIME, None
            while found is None:  # Ctrl-C stopped it, and a handler of the user's raised nothing
                with translated():
                    found = method(texts[begin:end], pairs[begin:end], begin, is_main)
            results.append(found[0])
            truncated += found[1]
        if truncated > 0:
            warnings.warn(f"{truncated} of {len(texts)} texts truncated to {self.max_length} tokens", stacklevel=3)
        return results


class Tokenizer:
    """Turns texts into the ids that a model was trained on, as Hugging Face's fast tokenizers and ``mezzo tokenize`` do.

    Thread-safe; calls release the GIL. A list is encoded by the threads of ``torch.set_num_threads``. A pickled tokenizer holds
    the path of its files.

    Args:
        model: folder of a model, its name on the Hugging Face Hub, or a vocabulary, the file vocab.txt of an uncased BERT.

    Raises:
        ValueError: for files that are missing, broken or of an unknown kind.
        FileNotFoundError: for a missing file; OSError for one that cannot be read.
    """

    def __init__(self, model: str | os.PathLike[str]) -> None:
        ops = _library.load()
        path = _path_of(model, "model")
        is_vocab = os.path.isfile(path)
        with translated():
            found = path if is_vocab else ops.find_model(path, True)
            self._path = os.path.abspath(found)
            self._tokenizer: Any = torch.classes.mezzo.Tokenizer(found, is_vocab)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path,)

    def __call__(self, text: str | bytes | Iterable[str | bytes], text_pair: str | bytes | Iterable[str | bytes] | None = None,
                 max_length: int = 0) -> dict[str, Any]:
        """Encodes a text or a list of texts, or pairs.

        Args:
            text: a text or several. bytes need not be valid UTF-8: each bad sequence becomes U+FFFD.
            text_pair: the second text of each pair.
            max_length: most ids of a text, special tokens included; a longer text loses its end, and a pair loses tokens of
                its longer text first. 0: no limit.

        Returns:
            ``input_ids`` and ``token_type_ids``, a list of int, and ``truncated``, a bool. Of several texts lists of these.

        Raises:
            ValueError: for a `max_length` that is too small for the special tokens.
        """
        ids, types, lengths, truncated = self._encode(text, text_pair, max_length)
        result: dict[str, list[Any]] = {
            "input_ids": _split(ids, lengths),
            "token_type_ids": _split(types, lengths),
            "truncated": [bool(one) for one in truncated.tolist()],
        }
        return {name: values[0] for name, values in result.items()} if isinstance(text, (str, bytes)) else result

    def _encode(self, text: Any, text_pair: Any, max_length: int) -> Any:
        texts = _encoded(text)
        pairs = [] if text_pair is None else _encoded(text_pair, "text_pair")
        if text_pair is not None and len(pairs) != len(texts):
            raise ValueError(f"there are {len(texts)} texts and {len(pairs)} second texts; pass as many of both")
        with translated():
            return self._tokenizer.encode(texts, pairs, int64(max_length))

    @overload
    def encode(self, text: str | bytes, text_pair: str | bytes | None = None,  # type: ignore[overload-overlap]
               max_length: int = 0) -> list[int]: ...

    @overload
    def encode(self, text: Iterable[str | bytes], text_pair: Iterable[str | bytes] | None = None,
               max_length: int = 0) -> list[list[int]]: ...

    def encode(self, text: Any, text_pair: Any = None, max_length: int = 0) -> Any:
        """The ``input_ids`` alone of such a call."""
        ids, _, lengths, _ = self._encode(text, text_pair, max_length)
        return ids.tolist() if isinstance(text, (str, bytes)) else _split(ids, lengths)

    def encode_words(self, words: Iterable[str], max_length: int = 0) -> dict[str, Any]:
        """Encodes a text whose words are known, each by itself, as ``is_split_into_words=True`` of transformers.

        Returns:
            As a call for one text does, and ``word_ids``: of each id the word's number from 0, -1 for special tokens.
        """
        with translated():
            ids, types, word_ids, truncated = self._tokenizer.encode_words(_encoded(words, "words"), int64(max_length))
        return {"input_ids": ids.tolist(), "token_type_ids": types.tolist(), "truncated": truncated, "word_ids": word_ids.tolist()}

    def encode_windows(self, text: str | bytes, max_length: int, stride: int) -> list[list[int]]:
        """The ids of windows of at most `max_length` ids, each of which begins with the last `stride` ids of the text before it.

        As ``return_overflowing_tokens=True`` of transformers.
        """
        with translated():
            windows = self._tokenizer.encode_windows(_encoded_one(text), int64(max_length), int64(stride))
        return [window.tolist() for window in windows]

    def split_words(self, text: str | bytes) -> list[str]:
        """The words of a text, for `encode_words`: as BERT finds words, each punctuation mark and Chinese character by itself."""
        return list(self._tokenizer.split_words(_encoded_one(text)))

    def token(self, token_id: int) -> str:
        """The token with this id. ValueError if no token has it."""
        with translated():
            return str(self._tokenizer.token(int64(token_id)))

    def save(self, folder: str | os.PathLike[str], *, token_types: bool = True, words: bool = False) -> None:
        """Writes files from which mezzo and transformers make the same ids, into a folder that exists.

        Args:
            token_types: whether the model takes token_type_ids.
            words: whether the model labels words.
        """
        with translated():
            self._tokenizer.save(_path_of(folder, "folder"), token_types, words)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return int(self._tokenizer.vocab_size())

    @property
    def pad_token_id(self) -> int | None:
        """The id that fills a batch of texts; None if there is none."""
        pad_id = int(self._tokenizer.pad_id())
        return None if pad_id < 0 else pad_id

    @property
    def model_max_length(self) -> int:
        """Most ids that the model reads; 0 if that is not known. Encoding does not apply it."""
        return int(self._tokenizer.model_max_length())


def _split(values: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    """Runs of `lengths` values each, as lists."""
    ends, all_values = lengths.cumsum(0).tolist(), values.tolist()
    return [all_values[begin:end] for begin, end in zip([0, *ends[:-1]], ends)]


def _encoded(text: str | bytes | Iterable[str | bytes], name: str = "text") -> list[bytes]:
    _refuse_tables(text, name)
    texts = [text] if isinstance(text, (str, bytes)) else text
    return [_encoded_one(one, f"{name}[{i}]") for i, one in enumerate(texts)]


def _encoded_one(text: str | bytes, name: str = "text") -> bytes:
    """In UTF-8, which has no halves of surrogate pairs; bytes stay."""
    if isinstance(text, bytes):
        return text
    try:
        return checked(text, str, name).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half of a surrogate pair, {text[error.start]!r}, at {error.start}: it is not Unicode text") from None
