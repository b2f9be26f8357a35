"""What an exporter is: it translates a `Program` into files, and checks the files against the policy itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

from surefoot.errors import SurefootError, UsageError

if TYPE_CHECKING:
    from surefoot.deploy.program import Program
    from surefoot.deploy.trials import Trials
    from surefoot.policies.actor_critic import ActorCritic


NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")


def require_name(name: object) -> None:
    """UsageError unless `name` may begin the names of files and C functions; so it cannot lead to another folder."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"the name {name!r} is not possible: use small letters, digits and _, starting with a letter")


@contextmanager
def working_folder() -> Iterator[Path]:
    """A temporary folder. SurefootError if there is none, or if what is written to it does not fit."""
    try:
        with TemporaryDirectory(prefix="surefoot-") as place:
            yield Path(place)
    except OSError as error:
        raise SurefootError(
            f"the folder for temporary files cannot be used: {error.strerror or error}; free some space there, or set "
            "TMPDIR to another folder"
        ) from None


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    name: str = "surefoot_policy"  # prefix of the files and functions
    seed: int | None = None  # for drawing actions; None: use the most likely ones
    about: str = ""  # a line about the run, for comments

    def __post_init__(self) -> None:
        require_name(self.name)

    @property
    def drawn(self) -> bool:
        return self.seed is not None


@dataclass(frozen=True)
class Parity:
    """How an export compares with the policy, computed in float64. Differences are relative to numbers above 1."""

    observations: int
    parameters: float  # the largest difference of a parameter of the distribution
    actions: float  # the largest difference of a continuous action
    ties: int  # discrete actions that differ where two choices were equal up to rounding
    wrong: int  # discrete actions that differ elsewhere, and results that are not finite
    rounding: float  # by how much PyTorch's float32 differs from float64, which the export is compared with
    allowed: float  # the largest difference: the exporter's own tolerance, and that rounding
    passed: bool


class Exporter(Protocol):
    tolerance: float
    checked_with: str  # what executes the files in the check

    def translate(self, program: Program, wish: Wish) -> Mapping[str, bytes]:
        """The files, by name."""
        ...

    def check(self, folder: Path, program: Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Parity:
        """Execute the files in `folder` on these observations and compare."""
        ...

    def sample(self, program: Program, policy: ActorCritic, trials: Trials, wish: Wish) -> Mapping[str, bytes]:
        """More files, for users who want to repeat the check: a few observations with what is expected."""
        ...
