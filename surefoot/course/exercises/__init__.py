"""The functions that the course asks its readers to write, each with the mistakes that people make."""

from __future__ import annotations

from surefoot.course.exercises import advantages, continuous, gradients, policies, trust
from surefoot.course.grading import Exercise

EXERCISES: dict[str, Exercise] = {
    **policies.EXERCISES,
    **gradients.EXERCISES,
    **trust.EXERCISES,
    **advantages.EXERCISES,
    **continuous.EXERCISES,
}
