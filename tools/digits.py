"""Writes scikit-learn's 1,797 handwritten digits as text, one a row: the digit, then its 8 x 8 pixels from 0 to 16.

    .venv/bin/python tools/digits.py digits.txt
"""
import argparse
from pathlib import Path

from sklearn.datasets import load_digits


def write_digits(path):
    digits = load_digits()
    with open(path, "w", encoding="ascii") as file:
        for digit, pixels in zip(digits.target, digits.data.astype(int), strict=True):
            print(digit, *pixels, file=file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    write_digits(parser.parse_args().output)
