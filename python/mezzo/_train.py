"""mezzo.train: the program's trainer, as a child process with its own threads and signals."""

import codecs
import contextlib
import csv
import ctypes
import fcntl
import io
import json
import os
import pty
import re
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import tty
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mezzo import _library
from mezzo._errors import checked, error_of

_FILES = ("train", "dev", "test")
_CLEAR = "\x1b[K"  # to the end of the line
_NOTEBOOK_COLUMNS = 100
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class TrainResult:
    """The result of a training. After a dry run, and on a rank that cannot read rank 0's folder, it has the folder's name
    alone."""

    folder: Path
    """The model, report.html, run.json and metrics.jsonl: what `Classifier` and ``transformers`` load."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The last evaluation of the model that is kept, on test or else on dev: ``loss``, ``accuracy`` and more, by name. Of a
    cross-validation the means over its folds."""
    history: list[dict[str, Any]] = field(repr=False, default_factory=list)
    """The lines of metrics.jsonl: an ``event`` each, such as "step" and "eval"."""


def train(**settings: Any) -> TrainResult:
    """Trains a classifier of texts, as ``mezzo train`` does, and returns its folder and its scores.

    The settings are the program's flags, with underscores for dashes: ``learning_rate=2e-5`` is ``--learning-rate 2e-5``. Names,
    defaults, checks and messages are the program's; docs/training.md explains them, ``mezzo train --help-all`` lists them.
    ``model``, ``train`` and ``output`` are needed::

        result = mezzo.train(model="bert-base-uncased", train="train.csv", output="out", epochs=2)
        print(result.metrics["accuracy"])

    A child process trains, so Python's threads go on, and the training has its own threads. Ctrl-C, also in a notebook, saves a
    checkpoint before KeyboardInterrupt is raised; ``resume="auto"`` goes on from there. Under torchrun, Ray Train and other
    launchers, which set RANK and WORLD_SIZE, the child is this process's rank.

    Args:
        settings: True or False for switches; a path, or a list of paths, for ``train``, ``dev`` and ``test``, or rows: dicts with
            ``text`` and ``label``; a list of names for lists such as ``labels``; numbers and strings. None is left out.

    Raises:
        ValueError: for a wrong setting.
        RuntimeError: for a training that failed or was stopped; FileNotFoundError or another OSError for a file's sake.
        KeyboardInterrupt: after Ctrl-C, with a checkpoint saved.
    """
    if settings.get("config") is not None and settings.get("output") is None:
        raise ValueError("output is missing; pass it beside config")
    checked(settings.get("output"), (str, bytes, os.PathLike, type(None)), "output")
    with tempfile.TemporaryDirectory(prefix="mezzo-") as rows:
        signals = _run([_passable(argument, name) for name, value in settings.items() for argument in _arguments(name, value, Path(rows))])
    if signals:
        os.kill(os.getpid(), signals[0])
    if settings.get("output") is None:
        return TrainResult(Path())  # of help
    return _result(Path(os.fsdecode(settings["output"])))


def _arguments(name: str, value: Any, rows: Path) -> list[str]:
    """The flag of a setting. Rows are written into the folder `rows`."""
    flag = "--" + name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"{flag}={str(value).lower()}"]
    if isinstance(value, (str, bytes, os.PathLike)):
        return [f"{flag}={os.fsdecode(value)}"]
    if not hasattr(value, "__iter__") or getattr(value, "ndim", None) == 0:
        return [f"{flag}={value.item() if hasattr(value, '__iter__') else value}"]
    if isinstance(value, Mapping) or getattr(value, "ndim", 1) != 1:
        raise TypeError(f"{name} is a {type(value).__name__}, expected a list" + (
            " of files or rows; a DataFrame's rows are df.to_dict(\"records\")" if name in _FILES else ""))
    values = list(value)
    if name in _FILES and not values:
        raise ValueError(f"{name} is empty")
    if name in _FILES and values and isinstance(values[0], Mapping):
        path = rows / f"{name}.jsonl"
        path.write_text("".join(json.dumps(dict(checked(row, Mapping, f"{name}[{i}]")), default=_plain) + "\n" for i, row in enumerate(values)))
        return [f"{flag}={path}"]
    if name in _FILES:
        return [flag, *(os.fsdecode(checked(one, (str, bytes, os.PathLike), f"{name}[{i}]")) for i, one in enumerate(values))]
    if wrong := [one for one in values if not str(one) or re.search(r"[\0\r\n]", str(one))]:
        raise ValueError(f"{name} has {wrong[0]!r}; a name has a character, and no line break")
    names = io.StringIO()
    csv.writer(names, lineterminator="").writerow(values)
    return [f"{flag}={names.getvalue()}"]


def _passable(argument: str, name: str) -> str:
    """An argument that another program can be given."""
    value = argument.partition("=")[2] or argument
    if "\0" in argument:
        raise ValueError(f"{name} is {value!r}; settings have no null characters")
    try:
        os.fsencode(argument)
    except UnicodeEncodeError:
        raise ValueError(f"{name} is {value!r}, which is not Unicode text") from None
    return argument


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's."""
    if not hasattr(value, "item"):
        raise TypeError(f"a row has a {type(value).__name__}: {value!r}; expected a str, a number, a bool or None")
    return value.item()


def _result(folder: Path) -> TrainResult:
    """What rank 0 has written before any rank's program ends."""
    folds = folder / "folds.json"
    if folds.exists():
        return TrainResult(folder, json.loads(folds.read_bytes())["mean"])
    records = folder / "metrics.jsonl"
    history = [json.loads(line) for line in records.read_bytes().splitlines()] if records.exists() else []
    final: dict[str, Any] = next((record for record in reversed(history) if record.get("final")), {})
    return TrainResult(folder, {name: value for name, value in final.items() if name not in ("event", "final")}, history)


def _run(arguments: list[str]) -> list[int]:
    """Runs ``mezzo train``, and raises its error. Gives the signals that stopped it, if they came to Python."""
    display = _display()
    program, environment = _library.program()
    # Its stderr is a separate terminal. So the bar stays in one line, if the display supports that.
    ours, theirs = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, ours)
        try:
            tty.setraw(theirs)
            display.fit(ours)
            child = subprocess.Popen(
                [program, "train", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
                env=_rank_of(environment) | {"TERM": display.term}, start_new_session=True, preexec_fn=_end_with_parent)
        finally:
            os.close(theirs)
        stack.enter_context(_ended(child))
        passed_on = stack.enter_context(_signals_passed_on(child))
        is_interrupted = False
        screen = _Screen(display)
        while True:
            try:
                _show(child, ours, screen)
                status = child.wait()
                break
            except KeyboardInterrupt:
                is_interrupted = True
                child.send_signal(signal.SIGINT)
    message = screen.close(is_error=status != 0)
    if is_interrupted or status in (128 + signal.SIGINT, -signal.SIGINT):
        raise KeyboardInterrupt
    if not passed_on:
        _check(status, message)
    return passed_on


def _check(status: int, message: str) -> None:
    if status == 3:
        warnings.warn("the model is trained, but a checkpoint could not be saved", stacklevel=4)
    elif status < 0:
        raise RuntimeError(f"the training was killed by {signal.Signals(-status).name}")
    elif status > 128:
        raise RuntimeError(f"the training was stopped by {signal.Signals(status - 128).name}, with a checkpoint saved; pass "
                           "resume=\"auto\" to go on")
    elif status != 0:
        raise error_of(message or f"the training failed with exit status {status}", ValueError if status == 2 else RuntimeError)


def _rank_of(environment: dict[str, str]) -> dict[str, str]:
    """The environment in which the child becomes the rank of this process."""
    distributed = sys.modules.get("torch.distributed")
    if "MASTER_PORT" in environment and distributed is not None and distributed.is_initialized():
        environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # this process's group has its store there
    return environment


def _end_with_parent() -> None:
    """If Python is killed, the training saves a checkpoint and ends."""
    ctypes.PyDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _ended(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Ends a child that is left behind by an error."""
    with child:
        try:
            yield
        finally:
            if child.poll() is None:
                child.terminate()


@contextlib.contextmanager
def _signals_passed_on(child: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Hands signals that would end Python to the child, which saves a checkpoint. Gives the received signals."""
    came: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        came.append(number)
        child.send_signal(number)

    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number in _PASSED_ON if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, pass_on)
    try:
        yield came
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _show(child: "subprocess.Popen[bytes]", terminal: int, screen: "_Screen") -> None:
    """Shows the child's output until its end."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(terminal, selectors.EVENT_READ)
        selector.register(child.stdout, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                try:
                    piece = os.read(key.fd, 65536)
                except OSError:  # of a terminal whose other end is closed
                    piece = b""
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.fd == terminal:
                    screen.feed(piece)
                else:
                    screen.print(piece)


class _Lines:
    """Shows lines, and no bar: the program writes its progress as lines now and then."""

    term = "dumb"

    def fit(self, terminal: int) -> None:
        """Gives the child's terminal the width of what shows its bar."""

    def bar(self, text: str) -> None:
        """Draws the bar, in place of its last state."""

    def line(self, text: str) -> None:
        """Shows a line above the bar. The program draws the bar again."""
        print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """The bar stays as it is."""


class _Terminal(_Lines):
    """Shows the program's bar in the terminal of sys.stderr."""

    term = os.environ.get("TERM", "dumb")
    _is_open = False  # the line of a bar

    def fit(self, terminal: int) -> None:
        self._terminal = terminal
        columns, rows = os.get_terminal_size(sys.stderr.fileno())
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def bar(self, text: str) -> None:
        print(f"\r{text}{_CLEAR}", end="", file=sys.stderr, flush=True)
        self._is_open = True
        self.fit(self._terminal)  # the window may have another width now

    def line(self, text: str) -> None:
        super().line(f"\r{_CLEAR}{text}" if self._is_open else text)

    def end(self) -> None:
        if self._is_open:
            print(file=sys.stderr, flush=True)
        self._is_open = False


class _Notebook(_Lines):
    """Shows the program's bar as one output of a notebook's cell, which changes."""

    term = "xterm"
    _output: Any = None

    def fit(self, terminal: int) -> None:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, _NOTEBOOK_COLUMNS, 0, 0))

    def bar(self, text: str) -> None:
        data = {"text/plain": text}
        if self._output is None:
            self._output = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._output.update(data, raw=True)

    def end(self) -> None:
        self._output = None


def _display() -> _Lines:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return _Notebook()
    return _Terminal() if sys.stderr is not None and sys.stderr.isatty() else _Lines()


class _Screen:
    """Reads the program's output on its terminal: lines, and states of the bar."""

    def __init__(self, display: _Lines) -> None:
        self._display = display
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._decode_stdout = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""
        self._held: str | None = None  # the last line, if it may be an error

    def feed(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + self._decode(piece)).split("\n")
        for line in lines:
            self._take(line)
        # A state of the bar: return, text, clear to the end of the line.
        if frames := list(re.finditer(f"\r([^\r]+){re.escape(_CLEAR)}", self._rest)):
            self._display.bar(frames[-1][1])
            self._rest = self._rest[frames[-1].end():]

    def _take(self, line: str) -> None:
        text = line.rsplit("\r", 1)[-1]
        if text.endswith(_CLEAR) and text != _CLEAR:
            self._display.bar(text.removesuffix(_CLEAR))
            text = ""
        text = text.removeprefix(_CLEAR)
        if not text:
            self._display.end()
            return
        self._show_held()
        if text.startswith("mezzo train: "):
            self._held = text
        else:
            self._display.line(text)

    def _show_held(self) -> None:
        if self._held is not None:
            self._display.line(self._held)
        self._held = None

    def print(self, piece: bytes) -> None:
        self._display.end()
        sys.stdout.write(self._decode_stdout(piece))
        sys.stdout.flush()

    def close(self, is_error: bool) -> str:
        """The message of a program that failed."""
        self._display.end()
        if not is_error:
            self._show_held()
        return (self._held or "").removeprefix("mezzo train: ")
