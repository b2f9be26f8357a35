"""The exceptions of this package. Each has the exit code for the command line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches

from surefoot.text import printable


class SurefootError(Exception):
    """A run failed. The message says what, where, why and what to do."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class UsageError(SurefootError):
    """A wrong name, value or combination, found before any work started."""

    exit_code = 2


class CodeError(SurefootError):
    """The user's code raised; its own traceback is the cause."""


class EnvError(CodeError):
    """The user's environment raised or broke its contract; its own traceback is the cause."""


class NonFiniteError(SurefootError):
    """A NaN or infinity appeared, and training cannot continue."""


class BusyError(SurefootError):
    """Another process holds the run."""

    exit_code = 3


class GoneError(SurefootError):
    """The run directory was deleted while it was in use."""


class PeerError(SurefootError):
    """Another process of the same run was lost."""

    def __init__(self, message: str, *, speaks: bool = True, cut_off: bool = False, exit_code: int = 1) -> None:
        """`speaks`: whether this process should print it. `cut_off`: whether not even the launcher's store answers.

        `exit_code`: that of the other process, if it failed by itself. The launcher takes whichever ends first.
        """
        super().__init__(message)
        self.speaks, self.cut_off, self.exit_code = speaks, cut_off, exit_code


class CheckpointError(SurefootError):
    """A checkpoint is missing, damaged or of another kind."""

    exit_code = 4


NOT_FINITE = (
    "the policy's outputs are not finite, so its actions mean nothing: its weights have grown beyond "
    "what float32 holds, or the observation is not finite"
)


def user_errors() -> tuple[type[BaseException], ...]:
    """What the user's code may raise: `sys.exit()` and a cancelled task in an env are errors of that env, too.

    Everything but a Ctrl-C. A function, because libraries that are imported later add kinds of their own. `except`
    calls it when something was raised, which may be a plain BaseException.
    """
    kinds = [kind for kind in BaseException.__subclasses__() if kind not in (KeyboardInterrupt, GeneratorExit)]
    return tuple(kinds) if type(sys.exception()) is not BaseException else (*kinds, BaseException)


def did_you_mean(wrong: str, valid: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest valid name (case does not count), or nothing.

    A part of a name will do as well: `retrun` for `episode_return`, `ppo` for `CartPole-v1/ppo`.
    """
    by_lower = {name.lower(): name for name in valid}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.6)
    if not near:
        by_part: dict[str, str] = {}
        for name in by_lower:
            for part in re.split("[/_]", name):
                by_part.setdefault(part, name)
        near = [by_part[part] for part in get_close_matches(wrong.lower(), by_part, n=1, cutoff=0.8)]
    return f"; did you mean '{by_lower[near[0]]}'?" if near else ""
