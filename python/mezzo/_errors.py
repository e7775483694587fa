"""Exceptions of Python for the messages of mezzo in C++."""

import contextlib
import errno
import operator
import os
import re
from collections.abc import Iterator
from typing import SupportsIndex, TypeVar

_Value = TypeVar("_Value")

_OF_THE_SYSTEM = {os.strerror(number): type(OSError(number, "")) for number in errno.errorcode}


def error_of(message: str, kind: type[Exception]) -> Exception:
    """An exception with this message: FileNotFoundError or another OSError if it has an error of the system, else of
    `kind`."""
    message = message.split("\nException raised from", 1)[0]
    said = re.findall(r"(?<=: )[A-Z][^.:;]*", message)
    return next((_OF_THE_SYSTEM[text] for text in said if text in _OF_THE_SYSTEM), kind)(message)


def checked(value: _Value, kind: type | tuple[type, ...], name: str) -> _Value:
    """An argument, of one of these types: C++ has no name for it in a message."""
    if not isinstance(value, kind):
        kinds = [f"torch.{one.__name__}" if one.__module__ == "torch" else one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,))]
        raise TypeError(f"{name} is a {type(value).__name__}, expected a {' or '.join(kinds)}")
    return value


def int64(number: SupportsIndex) -> int:
    """For C++, which treats the largest numbers as it would larger ones."""
    return max(-2**63, min(operator.index(number), 2**63 - 1))


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Calls of C++ in its scope raise such exceptions, without places in C++ sources."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise error_of(str(error), type(error)) from None
