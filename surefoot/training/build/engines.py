"""Which engine acts and which one learns in a run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.engine.contract import Engine
    from surefoot.engine.torch.learner import Learner


class EngineNames(TypedDict):
    """The engines of a run, as its files name them."""

    engine: str
    engine_chosen: str
    acting: str
    learning: str
    engine_reason: str


class Engines:
    """`acting` and `learning`: native or torch. They differ if the kernels cannot compute the algorithm's loss."""

    def __init__(self, engine: Engine, learner: Learner, reason: str, algorithm: Algorithm, algo: str) -> None:
        """`reason`: why this engine was chosen. `algo`: the algorithm's name."""
        self.engine, self.acting = engine, engine.acts_with
        self.reason, self._learner, self._algorithm, self._algo = reason, learner, algorithm, algo

    @property
    def learning(self) -> str:
        """The engine that computed the gradients or, before the first update, the one expected to."""
        if self._learner.used:
            return "+".join(sorted(self._learner.used))
        return self.acting if self.engine.learns(self._algorithm.current_loss(1.0)) else "torch"

    @property
    def acts_in_pytorch(self) -> bool:
        return self.engine.acts_in_pytorch

    @property
    def learns_in_pytorch(self) -> bool:
        """At least in part."""
        used = self._learner.used
        return "torch" in (used or self.learning)

    @property
    def name(self) -> str:
        """native or torch; mixed if one acts and the other learns."""
        return self.acting if self.acting == self.learning else "mixed"

    def __str__(self) -> str:
        if self.name != "mixed":
            return f"engine {self.name} ({self.reason})"
        why = f"{self._algo} has a loss that the kernels do not support"
        return f"acting {self.acting} ({self.reason}), learning {self.learning} ({why})"

    def as_dict(self) -> EngineNames:
        """For the run's files."""
        return {
            "engine": self.name,
            "engine_chosen": self.engine.name,
            "acting": self.acting,
            "learning": self.learning,
            "engine_reason": str(self),
        }
