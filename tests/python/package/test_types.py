"""The type hints of the package, by mypy."""
import os
import subprocess
import sys
from pathlib import Path

import mezzo

USER = """
import mezzo
from mezzo.sklearn import TextClassifier

reveal_type(mezzo.Tokenizer("out").encode("a"))
reveal_type(mezzo.Tokenizer("out").encode(["a"]))
reveal_type(mezzo.train(output="out").metrics)
reveal_type(mezzo.Classifier("out", precision="bf16").predict("a")[0])
mezzo.Classifier("out").logits(3)
mezzo.Classifier("out", presision="bf16")
mezzo.nothing
TextClassifier("out", epochs="two")
"""
FOUND = [
    'note: Revealed type is "list[int]"',
    'note: Revealed type is "list[list[int]]"',
    'note: Revealed type is "dict[str, Any]"',
    'note: Revealed type is "dict[str, Any]"',
    'error: Argument 1 to "logits" of "Classifier" has incompatible type "int"; expected "str | Iterable[str]"  [arg-type]',
    'error: Unexpected keyword argument "presision" for "Classifier"; did you mean "precision"?  [call-arg]',
    'note: "Classifier" defined in "mezzo.text"',
    'error: Module has no attribute "nothing"  [attr-defined]',
    'error: Argument "epochs" to "TextClassifier" has incompatible type "str"; expected "float | None"  [arg-type]',
]


def test_mypy_finds_nothing_in_the_package_and_mistakes_of_its_users(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    package = Path(mezzo.__file__).parent
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", package.parent / ".mypy_cache", "-p", "mezzo", "-p", "user"],
                          cwd=tmp_path, env=os.environ | {"MYPYPATH": f"{package.parent}:{tmp_path}"}, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.startswith("user.py:")] == [], done.stdout + done.stderr
    found = [line.split(": ", 1)[1].replace("builtins.", "") for line in lines if line.startswith("user.py:")]
    assert found == FOUND
