"""The command `mezzo`: replaces this process by the program."""

import os
import sys

from mezzo import _library


def main() -> None:
    try:
        program, environment = _library.program()
    except ImportError as error:
        sys.exit(f"mezzo: {error}")
    os.execve(program, [program, *sys.argv[1:]], environment)
