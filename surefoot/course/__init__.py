"""What the course (`course/` in the repository) uses: graders that say what is wrong, and pictures for notebooks.

from surefoot.course import check
check("log_prob", my_function)
"""

from __future__ import annotations

from collections.abc import Callable

from surefoot.course.contract import contract
from surefoot.course.examination import examine
from surefoot.course.exercises import EXERCISES
from surefoot.course.grading import Wrong, grade
from surefoot.course.homework import check_agent
from surefoot.course.pictures import Picture, curves, lab
from surefoot.errors import UsageError, did_you_mean

__all__ = ["EXERCISES", "Picture", "Wrong", "check", "check_agent", "contract", "curves", "examine", "lab"]


def check(name: str, solution: Callable[..., object]) -> None:
    """Grade the solution of an exercise: prints that it is right, or raises `Wrong` with what is wrong."""
    if name not in EXERCISES:
        raise UsageError(
            f"there is no exercise '{name}'{did_you_mean(name, EXERCISES)} (one of {', '.join(EXERCISES)})"
        )
    grade(name, EXERCISES[name], solution)
