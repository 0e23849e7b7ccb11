"""`python3 installer COMMAND`: sets Unabridged up inside this checkout and starts it.

Standard library only. This file and `python_check.py` parse on Python 3.6, so that an old Python is told what to type
instead of showing a SyntaxError; everything else needs Python 3.11 and is imported after the check.
"""

import sys

import python_check


def main() -> int:
    problem = python_check.problem_here()
    if problem:
        sys.stderr.write(problem + "\n")
        return 1
    from commands import main as run_command

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
