"""The engine interface: an engine runs a policy in envs, trains it, and provides the operations over a rollout.

The trainer asks engines in order whether they support the run (`registry.py`) and never names one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from surefoot.engine.episodes import Episode, EpisodeColumns, EpisodeTracker
from surefoot.engine.group import ALONE, Group
from surefoot.engine.timing import PhaseTimer
from surefoot.math.operations import OPERATIONS, Operations
from surefoot.text import counted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.engine.config import GradientConfig
    from surefoot.engine.losses import Loss, LossFunction
    from surefoot.engine.names import Precision
    from surefoot.engine.torch.learner import Learner
    from surefoot.policies.actor_critic import ActorCritic, Noise
    from surefoot.types import Array, Context, Envs, Rollout


class Learns(Protocol):
    """What an engine needs to know about an algorithm."""

    train_actor: ClassVar[bool]

    @property
    def config(self) -> GradientConfig: ...

    @property
    def episodes_per_env(self) -> int | None: ...

    def terms(self, remaining: float) -> Loss | None: ...

    def update(self, learner: Learner, rollout: Rollout) -> dict[str, float]: ...


class Actor(Protocol):
    """Runs a policy: actions and state values from the envs' observations."""

    policy: ActorCritic
    independent_rows: bool  # each row is computed independently, bit for bit, so slices may act separately
    fills_log_prob: bool  # whether `act` computes it; otherwise `log_prob` is called once per rollout

    def act(
        self, obs: Tensor, noise: Noise, start: Tensor | None, memory: Tensor | None, out: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """One step of n envs with raw observations `[n, ...]`.

        `out`: receives parameters of π, actions and perhaps log π. `memory` `[n, M]` is updated in place.
        """
        ...

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of the actions of a whole rollout, `[T, N]`."""
        ...

    def value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        """V of `[B, ...]` normalised rows; zeros without a critic."""
        ...


class Observer(Protocol):
    """Is shown what a learner computes on its way, as flat vectors that are used again: copy what you keep.

    `minibatch`: the gradient of one minibatch over all trained parameters, before its norm is clipped. `policy`: the
    gradient of the objective over the actor's parameters; `natural_step`: the step that was computed from it.
    """

    def __call__(self, kind: Literal["minibatch", "policy", "natural_step"], vector: Tensor, /) -> None: ...


class Threads(NamedTuple):
    """The threads of a learner."""

    number: int
    why: str = ""
    asked: int = 1

    def __str__(self) -> str:
        why = self.why if self.number > 1 else ""
        if self.number < self.asked:
            why = f"{self.asked} were asked for; the system refused more"
        return f"{counted(self.number, 'thread')}{f' ({why})' if why else ''}"


@dataclass(frozen=True)
class LearnerOptions:
    """Options of a learner, in addition to policy and algorithm."""

    generator: torch.Generator  # shuffles
    threads: int | Literal["auto"] = 1
    samples: int = 256  # approximate size of a gradient step, for measuring the best number of threads
    group: Group = ALONE  # the processes that share gradients
    precision: Precision = "float32"  # of products on a GPU


@dataclass(frozen=True)
class CollectorOptions:
    """Options of a collector, in addition to envs and actor."""

    rollout_length: int  # steps; for whole episodes, the longest possible one
    generator: torch.Generator  # draws actions
    episodes_per_env: int | None = None
    reset_each_rollout: bool = False
    reward_scale: float = 1.0
    sign_rewards: bool = False
    reward_gamma: float | None = None  # normalise rewards by the spread of returns with this discount
    log_info: Sequence[str] = ()
    group: Group = ALONE  # the processes that share the envs
    timer: PhaseTimer = field(default_factory=PhaseTimer)

    def tracker(self, num_envs: int) -> EpisodeTracker:
        return EpisodeTracker(num_envs, self.log_info)


class Done(NamedTuple):
    """What a whole iteration gave."""

    steps: int
    episodes: Sequence[Episode]
    metrics: dict[str, float]


class Table(NamedTuple):
    """Metrics of several updates, some of which may lack some."""

    names: tuple[str, ...]  # in the order in which they appear
    rows: Array  # [updates, names] float64; NaN is not there
    orders: Sequence[tuple[str, ...]]  # the names of each update, in order

    def columns(self) -> Iterator[tuple[str, list[float]]]:
        for name, column in zip(self.names, self.rows.T.tolist(), strict=True):
            yield name, [x for x in column if x == x]

    def as_dicts(self) -> list[dict[str, float]]:
        own = [dict(zip(self.names, row, strict=True)) for row in self.rows.tolist()]
        return [{name: each[name] for name in order} for each, order in zip(own, self.orders, strict=True)]


class Several(NamedTuple):
    """What several whole iterations gave, one after the other."""

    steps: int  # of each
    updates: int
    episodes: EpisodeColumns
    number: Array  # of the iteration in which each of these episodes ended, from 0
    tables: Sequence[Table]


class Iterations(Protocol):
    """Iterations that an engine does whole: it collects and learns, and is asked afterwards what came of it."""

    @property
    def busy(self) -> bool:
        """Whether one was begun and has not been read."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether another one may be begun before that is read."""
        ...

    @property
    def at_once(self) -> bool:
        """Whether they are begun with those of other runs, never by `begin`."""
        ...

    @property
    def more(self) -> bool:
        """Whether the next one is over as well, and was begun because nobody needs to look in between."""
        ...

    def begin(self, update: int, remaining: float) -> bool:
        """Start the iteration of this number. False: this one must be done in the ordinary way."""
        ...

    def end(self) -> Done | None:
        """Wait for the first that was begun. None: it must not stand and was taken back, with what was begun after it;
        done in the ordinary way, it says why.
        """
        ...

    def rest(self) -> Several | None:
        """All that are over, at once. None: they have to be ended one by one."""
        ...

    def take_back(self) -> None:
        """Undo what was begun and not read."""
        ...

    def leave(self) -> None:
        """The next iteration is done in the ordinary way."""
        ...


class Turn(NamedTuple):
    """The iteration that one of several runs is about to do, and those after it before which nobody needs to look."""

    agent: int
    update: int
    remaining: tuple[float, ...]  # the fraction of the budget that is left before each of them


class Together(Protocol):
    """Several runs whose iterations an engine does at once."""

    most: int  # iterations of each that are begun before any of them is read

    def member(self, agent: int) -> Iterations:
        """What the run's own loop asks for its iterations."""
        ...

    def begin(self, turns: Sequence[Turn]) -> None:
        """Start these iterations, if they can be done at once; a member is `busy` then. Otherwise each does its own."""
        ...


class Engine(ABC):
    """One way to act and to learn. A subclass is registered by name (`registry.py`)."""

    name: ClassVar[str]
    acts_with: ClassVar[str]  # torch, native or cuda: what computes the actions
    may_use_kernels: ClassVar[bool] = False  # whether envs may be stepped by the compiled kernels
    steps_on_device: ClassVar[bool] = False  # whether envs of ours may be stepped on the policy's GPU
    operations: Operations = OPERATIONS

    @property
    def acts_in_pytorch(self) -> bool:
        """Whether actions depend on PyTorch's number of threads, which the run then records."""
        return self.acts_with == "torch"

    @abstractmethod
    def serves(self, policy: ActorCritic, algorithm: Learns, envs: Envs) -> str | None:
        """None if the engine supports this run; otherwise the reason why not."""

    def brings(self, policy: ActorCritic) -> str:
        """The advantage of this engine for a supported policy, in a few words; "" if there is none to mention."""
        return ""

    def learns(self, loss: LossFunction) -> bool:
        """Whether its learner computes this loss itself; otherwise PyTorch does."""
        return True

    def iterations(self, collector: Collector, learner: Learner, algorithm: Learns) -> Iterations | None:
        """What does whole iterations of this run; None if every part of one is called separately."""
        return None

    def together(self, runs: Sequence[tuple[Collector, Learner, Learns]]) -> Together | str:
        """What does the iterations of several runs at once, or why this engine cannot."""
        return f"the engine {self.name} trains one run at a time"

    def take_notices(self) -> list[str]:
        """What the user should know that has come up since the last call."""
        return []

    @abstractmethod
    def learner(self, policy: ActorCritic, algorithm: Learns, options: LearnerOptions) -> Learner: ...

    @abstractmethod
    def collector(self, envs: Envs, actor: Actor, options: CollectorOptions) -> Collector: ...
