"""The learner of a population: an algorithm's `update` calls it like any other, with the rollout of all agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from surefoot.engine.cuda.fused_passes import FusedPasses
from surefoot.engine.cuda.fused_steps import COLUMNS
from surefoot.engine.cuda.learner import CudaLearner
from surefoot.engine.cuda.looking import Gradients, by_agent_of, look_over, of_gradients
from surefoot.engine.cuda.operations import DeviceOperations
from surefoot.engine.cuda.population.passes import PopulationPasses
from surefoot.engine.cuda.statistics import explained_variances, means, spread_of_kl, standardized, weighted_means
from surefoot.engine.cuda.whole_nets import WholeNets
from surefoot.engine.group import ALONE
from surefoot.engine.losses import Loss
from surefoot.engine.shares import Shares
from surefoot.engine.torch.instruments import due
from surefoot.kernels.agents import side_by_side

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.config import EpochConfig, GradientConfig, Minibatches
    from surefoot.engine.cuda.recorder import Recorder
    from surefoot.engine.losses import LossFunction
    from surefoot.engine.torch.learner import Estimate
    from surefoot.engine.torch.passes import Passes
    from surefoot.math.operations import Operations
    from surefoot.types import Batch, Metrics, Rollout


class SharesOfOne(Shares):
    """Counts the minibatches of one agent."""

    def __init__(self, agents: int) -> None:
        super().__init__(ALONE)
        self.agents = agents

    def count(self, wanted: Minibatches, batch: Batch) -> int:
        return super().count(wanted, part_of(batch, 0, len(batch) // self.agents))


class SideBySide(DeviceOperations):
    """Operations over the rollout of all agents `[T, agents·N]`: each agent's statistics and discounts are its own."""

    def __init__(self, members: Sequence[CudaLearner], num_envs: int) -> None:
        self.agents, self.num_envs = len(members), num_envs
        rows = [discounts_of(member.config) for member in members]
        self.numbers: Tensor | None = None  # `[3, agents]` γ, γλ and γ·value_lambda, if agents differ in them
        if len(set(rows)) > 1:
            numbers = [(gamma, gamma * lambda_, gamma * of_value) for gamma, lambda_, of_value in filter(None, rows)]
            self.numbers = torch.tensor(
                numbers, dtype=torch.float32, device=members[0].flat.vector.device
            ).T.contiguous()
        self._of_first = rows[0]

    def advantages(
        self, rollout: Rollout, gamma: float, gae_lambda: float, value_lambda: float, segment_length: int | None
    ) -> tuple[Tensor, Tensor]:
        """The algorithm that asks is the first agent's, and so are its numbers."""
        if self.numbers is None:
            return super().advantages(rollout, gamma, gae_lambda, value_lambda, segment_length)
        assert (gamma, gae_lambda, value_lambda) == self._of_first
        return self.scanned(rollout, self.numbers, segment_length)

    def standardize(self, x: Tensor, weight: Tensor | None) -> Tensor:
        assert weight is None
        rows = by_agent(x, self.agents, self.num_envs).view(self.agents, -1)
        # A row of its own is aligned as it is alone; PyTorch adds others in another order.
        own = torch.stack([super(SideBySide, self).standardize(row.clone(), None) for row in rows])
        return own.view(self.agents, -1, self.num_envs).transpose(0, 1).reshape(-1)


@dataclass
class PopulationLook:
    """What an update that is measured keeps, a row for each agent; see `Look`."""

    loss: LossFunction
    start: Tensor
    minibatches: int
    normalize: bool
    half: Tensor | None = None
    total: Tensor | None = None
    squares: Tensor | None = None


class PopulationLearner(CudaLearner):
    """Parameters and optimizers of all agents, `[agents, P]`. What it asks the first agent for holds for all."""

    nets: WholeNets

    def __init__(self, members: Sequence[CudaLearner], num_envs: int, recorder: Recorder) -> None:
        first, agents = members[0], len(members)
        assert first.nets is not None
        self.members, self.agents, self.num_envs, self.recorder = members, agents, num_envs, recorder
        self.policy, self.config, self.optimizer = first.policy, first.config, first.optimizer
        self.group, self.shares, self.operations = ALONE, SharesOfOne(agents), SideBySide(members, num_envs)
        self.flat = first.flat.with_vector(side_by_side([member.flat.vector for member in members]))
        self.first = side_by_side([member.optimizer.first for member in members])
        self.second = side_by_side([member.optimizer.second for member in members])
        own = first.nets
        self.nets = WholeNets(self.flat.vector, own.actor, own.critic, own.slack, num_envs)
        self.adaptive_kl, self.max_grad_norm, self.observer = None, None, None
        self.update, self.looking, self.keep, self.meanwhile = 0, None, None, None
        self._begun, self.look, self.used = False, None, set()
        self.all_passes: PopulationPasses | None = None

    looking: PopulationLook | None

    @property
    def generators(self) -> list[torch.Generator]:
        """Those that shuffle each agent's samples."""
        return [member.generator for member in self.members]

    def epochs(
        self,
        loss: LossFunction,
        estimate: Estimate,
        rollout: Rollout,
        config: EpochConfig,
        *,
        normalize: bool = False,
    ) -> dict[str, float]:
        def estimated(rollout: Rollout, operations: Operations) -> Batch:
            batch = estimate(rollout, operations)
            columns: dict[str, Any] = {
                name: by_agent(getattr(batch, name), self.agents, self.num_envs) for name in COLUMNS
            }
            return replace(batch, **columns)

        return super().epochs(loss, estimated, rollout, config, normalize=normalize)

    def passes(self, loss: LossFunction, batch: Batch, parts: int, number: int, *, normalize: bool) -> Passes:
        """Those that `prepare` has made."""
        passes = self.all_passes
        assert passes is not None
        assert (passes.parts, passes.like.normalize, len(passes.batch)) == (parts, normalize, len(batch))
        passes.begin(batch)
        return passes

    def prepare(self) -> FusedPasses:
        """Make the passes, once, like those of the first member's last update. It may have others by now."""
        if self.all_passes is None:
            assert self.members[0].latest is not None
            like, _ = self.members[0].latest
            assert isinstance(like, FusedPasses)
            self.all_passes = PopulationPasses(self, like)
        return self.all_passes.like

    @contextmanager
    def all_or_nothing(self) -> Iterator[Tensor]:
        """An update that must not stand is taken back afterwards, agent by agent."""
        yield self.flat.vector.clone()
        self.forget()

    def forget(self) -> None:
        super().forget()
        self.looking = None

    def begin_look(
        self, loss: LossFunction, batch: Batch, passes: int, minibatches: int = 1, *, normalize: bool = False
    ) -> None:
        whole, halves = due(self.update, passes, len(batch) // self.agents)
        self._begun, self.looking = True, None
        if self.instruments and whole:
            self.looking = PopulationLook(loss, self.flat.actor.clone(), minibatches, normalize)
            if halves and minibatches == 1 and self.all_passes is not None:
                self.all_passes.load(batch)
                self.looking.half = self.all_passes.half_gradients()

    def look_over(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """KL(old‖new) `[agents, B]` and the instruments `[agents]`, where they are due."""
        size, look, passes = len(batch) // self.agents, self.looking, self.all_passes
        if look is None:
            return self.nets.kl_from(batch.obs, batch.dist_params).view(self.agents, size), {}
        assert isinstance(look.loss, Loss)
        assert passes is not None
        assert look.total is not None
        assert look.squares is not None
        loss = by_agent_of(look.loss, passes.numbers)
        with torch.no_grad():
            kl, looked = look_over(self.policy, self.nets, loss, batch, self.agents, normalize=look.normalize)
            kept = Gradients(look.start, look.total, look.squares, look.minibatches, look.half)
            return kl, looked | of_gradients(kept, self.flat.actor, size)

    def normalized(self, part: Batch) -> Batch:
        return replace(part, advantage=standardized(part.advantage.view(self.agents, -1)).flatten())

    def mean(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """A number for each agent, from `[agents, B]` or, with weights, from a rollout `[T, agents·N]`."""
        if weight is None:
            return means(x)
        rows = (by_agent(y.flatten(), self.agents, self.num_envs).view(self.agents, -1) for y in (x, weight))
        return weighted_means(*rows)

    def spread_of_kl(self, kl: Tensor, weight: Tensor | None) -> Metrics:
        return spread_of_kl(kl)

    def explained_variance(self, batch: Batch) -> Tensor:
        return explained_variances(batch.value.view(self.agents, -1), batch.value_target.view(self.agents, -1))

    def absorb(self, rollout: Rollout) -> Metrics:
        clipped = self.policy.actions.clip_fraction(rollout.action)
        for agent, member in enumerate(self.members):
            if member.policy.normalizer is not None:
                own = slice(agent * self.num_envs, (agent + 1) * self.num_envs)
                obs, valid = (x[:, own].contiguous() for x in (rollout.obs[:-1], rollout.valid))
                member.policy.normalizer.merge(obs, valid, member.operations)
        return {} if clipped is None else {"action_clip_fraction": self.mean(clipped, rollout.valid.float())}


def discounts_of(config: GradientConfig) -> tuple[float, float, float] | None:
    """γ, λ and the λ of the critic's targets; None if an algorithm of the user's own has no such settings."""
    values = config.as_dict()
    gamma, gae_lambda, value_lambda = (values.get(name) for name in ("gamma", "gae_lambda", "value_lambda"))
    if not isinstance(gamma, float) or not isinstance(gae_lambda, float):
        return None
    return gamma, gae_lambda, value_lambda if isinstance(value_lambda, float) else gae_lambda


def by_agent(x: Tensor, agents: int, num_envs: int) -> Tensor:
    """Rows of a rollout `[T·agents·N, ...]` with those of one agent after those of another."""
    return x.view(-1, agents, num_envs, *x.shape[1:]).transpose(0, 1).reshape(x.shape)


def part_of(batch: Batch, agent: int, size: int) -> Batch:
    """The samples of one agent."""
    own = slice(agent * size, (agent + 1) * size)
    columns: dict[str, Any] = {name: getattr(batch, name)[own] for name in COLUMNS}
    return replace(batch, num_envs=batch.num_envs * size // len(batch), **columns)
