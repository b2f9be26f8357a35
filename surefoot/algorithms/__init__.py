"""The algorithms, in the lecture's order. Flags, `explain`, docs, checkpoints and contract tests use this list."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from surefoot.algorithms.a2c import A2C
from surefoot.algorithms.npg import NPG
from surefoot.algorithms.own import GROUP, check_algorithm, load_algorithm
from surefoot.algorithms.parts import Base
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.algorithms.ppo_penalty import PPOPenalty
from surefoot.algorithms.reinforce import Reinforce
from surefoot.algorithms.trpo import TRPO
from surefoot.algorithms.vpg import VPG
from surefoot.errors import UsageError, did_you_mean
from surefoot.user_code import installed, is_from_python, load_entry, name_of, names_code

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from surefoot.engine.losses import Loss, LossFunction
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


class Algorithm(Protocol):
    """The interface that the trainer uses."""

    config_type: type[Any]
    uses_critic: ClassVar[bool]
    train_actor: ClassVar[bool]  # by gradient descent; False: the algorithm updates the actor itself
    config: Any
    state: dict[str, float]  # values that change over the run (such as β); saved with it

    def __init__(self, config: Any) -> None: ...

    @property
    def episodes_per_env(self) -> int | None:
        """Whole episodes per env and update, or None for rollouts of fixed length."""
        ...

    def terms(self, remaining: float) -> Loss | None:
        """The loss as a declaration that compiled kernels can compute; None: PyTorch computes it."""
        ...

    def current_loss(self, remaining: float) -> LossFunction:
        """The loss passed to a learner: those terms, or a function that only PyTorch can differentiate."""
        ...

    def estimate(self, rollout: Rollout, operations: Operations = ...) -> Batch: ...

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]: ...


ALGORITHMS: dict[str, type[Algorithm]] = {
    "reinforce": Reinforce,
    "vpg": VPG,
    "a2c": A2C,
    "npg": NPG,
    "trpo": TRPO,
    "ppo-penalty": PPOPenalty,
    "ppo": PPOClip,
}


def installed_algorithms() -> Mapping[str, EntryPoint]:
    """The algorithms of installed packages, by name."""
    return installed(GROUP)


def get_algorithm(name: str) -> type[Algorithm]:
    """The algorithm of this name: built-in, from a package (entry point `surefoot.algorithms`), or the user's own.

    `file.py:Class` and `module:Class` execute the user's code.
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if names_code(name) or is_from_python(name):
        return load_algorithm(name)
    others = installed_algorithms()
    if name in others:
        return check_algorithm(load_entry(others[name], "algorithm"), name)
    if name.endswith(".py"):
        raise UsageError(f"algo={name!r} names a file; name its class as well: {name}:Class")
    known = [*ALGORITHMS, *others]
    raise UsageError(
        f"unknown algorithm '{name}'{did_you_mean(name, known)} (known: {', '.join(known)}; one of your own is "
        "file.py:Class or module:Class)"
    )


def described(algorithm: type) -> str:
    """The description of an algorithm: the docstring of its file, or else its own."""
    module = sys.modules.get(algorithm.__module__)
    own = algorithm.__doc__ if "__doc__" in vars(algorithm) else None
    return inspect.cleandoc((module.__doc__ if module else None) or own or "no description")


def algorithm_name(algorithm: type) -> str:
    """The name that the settings record for an algorithm passed as a class."""
    return next((name for name, ours in ALGORITHMS.items() if ours is algorithm), name_of(algorithm))


def preset_algorithm(name: str, algorithm: type) -> str:
    """The algorithm whose presets are used: the class may name another one (`preset_of`)."""
    return (algorithm.preset_of if issubclass(algorithm, Base) else None) or name
