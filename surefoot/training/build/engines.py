"""What acts and what learns in a run, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.engine.native.learner import NativeLearner

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.engine.torch.learner import Learner


class Engines:
    """`acting` and `learning`: native or torch. They differ where an algorithm hands the kernels no loss."""

    def __init__(self, learner: Learner, reason: str, algorithm: Algorithm, algo: str) -> None:
        """`reason`: why this learner. `algo`: the algorithm's name."""
        self.acting = "native" if isinstance(learner, NativeLearner) else "torch"
        self.reason, self._learner, self._algorithm, self._algo = reason, learner, algorithm, algo

    @property
    def learning(self) -> str:
        """What has computed gradients so far or, before the first update, what the algorithm's spec lets expect."""
        if self._learner.used:
            return "+".join(sorted(self._learner.used))
        spec = getattr(self._algorithm, "spec", None)
        return self.acting if spec is not None and spec(1.0) is not None else "torch"

    @property
    def name(self) -> str:
        """native or torch; mixed where one acts and the other learns."""
        return self.acting if self.acting == self.learning else "mixed"

    def __str__(self) -> str:
        if self.name != "mixed":
            return f"engine {self.name} ({self.reason})"
        why = f"{self._algo} hands over no loss that the kernels know"
        return f"acting {self.acting} ({self.reason}), learning {self.learning} ({why})"

    def as_dict(self) -> dict[str, str]:
        """For the run's files."""
        return {"engine": self.name, "acting": self.acting, "learning": self.learning, "engine_reason": str(self)}
