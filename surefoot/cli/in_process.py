"""A command that is run by a process of ours which was started for it, instead of by a shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from surefoot.cli.main import main
from surefoot.training.life.signals import exit_code


def print_to(path: str | os.PathLike[str]) -> None:
    """Append everything that this process prints from now on to a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def exit_code_of(words: Sequence[str]) -> int:
    """Run `surefoot WORDS…` in this process; returns the exit code that its own process would have."""
    sys.argv = ["surefoot", *words]
    try:
        return main(words)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except KeyboardInterrupt as interrupt:
        return exit_code(interrupt)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
