"""The algorithms, in the lecture's order. Flags, `explain`, docs, checkpoints and contract tests use this list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from surefoot.algorithms.a2c import A2C
from surefoot.algorithms.npg import NPG
from surefoot.algorithms.ppo_clip import PPOClip
from surefoot.algorithms.ppo_penalty import PPOPenalty
from surefoot.algorithms.reinforce import Reinforce
from surefoot.algorithms.trpo import TRPO
from surefoot.algorithms.vpg import VPG
from surefoot.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from surefoot.engine.losses import Loss, LossFunction
    from surefoot.engine.torch.learner import Learner
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Rollout


class Algorithm(Protocol):
    """The interface that the trainer uses."""

    config_type: ClassVar[type[Any]]
    uses_critic: ClassVar[bool]
    train_actor: ClassVar[bool]  # by gradient descent; False: the algorithm moves the actor itself
    config: Any
    state: dict[str, float]  # values that change over the run (such as β); saved with it

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


ALGORITHMS: dict[str, type[Any]] = {
    "reinforce": Reinforce,
    "vpg": VPG,
    "a2c": A2C,
    "npg": NPG,
    "trpo": TRPO,
    "ppo-penalty": PPOPenalty,
    "ppo": PPOClip,
}


def get_algorithm(name: str) -> type[Any]:
    """The algorithm of this name: built in, or from an installed package (entry point `surefoot.algorithms`)."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    from importlib.metadata import entry_points  # imported late: it takes a tenth of the command line's start-up time

    others = {entry.name: entry for entry in entry_points(group="surefoot.algorithms")}
    if name in others:
        algorithm: type[Any] = others[name].load()
        return algorithm
    known = [*ALGORITHMS, *others]
    raise UsageError(f"unknown algorithm '{name}'{did_you_mean(name, known)} (known: {', '.join(known)})")
