"""The kinds of action distribution that the kernels know. Imports nothing: action models name theirs from here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadKind:
    """A kind and its columns per unit (a choice, a bit, a dimension); `src/heads.hpp` has a struct for each."""

    code: int
    params: int = 1
    noises: int = 1
    gaussian: bool = False  # a mean and a log std per unit; the latter may be a separate parameter
    chooses: bool = False  # one of the units is chosen; a mask may forbid some

    def actions(self, size: int) -> int:
        return 1 if self.chooses else size


CATEGORICAL = HeadKind(0, chooses=True)
BERNOULLI = HeadKind(1)
GAUSSIAN = HeadKind(2, params=2, gaussian=True)
TANH_GAUSSIAN = HeadKind(3, params=2, gaussian=True)
BETA = HeadKind(4, params=2, noises=32)


@dataclass(frozen=True, slots=True)
class KernelPart:
    """One independent part of an action, as described to the kernels."""

    kind: HeadKind
    size: int
    log_scale: float = 0.0  # Σ log of the factors that scale an action to its bounds
