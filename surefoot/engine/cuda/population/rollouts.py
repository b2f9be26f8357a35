"""The rollouts of all agents of a population together, by the kernel that plays those of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from surefoot.engine.collecting.collector import Collector
from surefoot.engine.collecting.device_episodes import packed_episodes
from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.stepping import step_all
from surefoot.engine.cuda.actor import RecordedActor
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.device_rewards import DeviceRewardNormalizer
from surefoot.math.constants import NORMALIZED_CLIP
from surefoot.math.distributions.discrete import Categorical

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.cuda.recorder import Recorder
    from surefoot.engine.cuda.whole_nets import WholeNets
    from surefoot.math.operations import Operations
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Context, Rollout

CHOICE = 0  # the head of an actor that chooses: `kernels.fused_nets.CATEGORICAL`


class PopulationActor(RecordedActor):
    """V of the states of all agents, each by its own critic."""

    def __init__(self, policy: ActorCritic, recorder: Recorder, nets: WholeNets) -> None:
        super().__init__(policy, recorder, nets, nets)
        self._own = nets

    def value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        value = self._own.value(inputs)
        assert value is not None
        return value


class PopulationRollouts:
    """The envs of all agents, `agents·N` side by side, and their rollouts."""

    def __init__(
        self, members: Sequence[Collector], nets: WholeNets, operations: Operations, recorder: Recorder
    ) -> None:
        first = members[0]
        several = [member.envs for member in members if isinstance(member.envs, DeviceEnvs)]
        self.members, self.agents, self.num_envs, self.length = members, len(several), several[0].num_envs, first.length
        self.envs = DeviceEnvs.side_by_side(several)
        actor = PopulationActor(first.policy, recorder, nets)
        options = replace(first.options, reward_gamma=None, log_info=(), reward_scale=1.0)
        self.collector = Collector(self.envs, actor, options, operations, step_all)
        storage = self.collector.storage
        assert isinstance(storage, DeviceStorage)
        self.storage, self.nets = storage, nets
        storage.normalize = self._normalize
        self._places = storage.places()
        device = first.device
        self.carried = torch.zeros(2, self.agents * self.num_envs, dtype=torch.float64, device=device)
        size = self.length * self.agents * self.num_envs + 1
        self.columns = torch.zeros(size, 4, dtype=torch.float64, device=device)  # the episodes that ended
        scales = [member.options.reward_scale for member in members for _ in range(self.num_envs)]
        self._scale = torch.tensor(scales, dtype=storage.reward.dtype, device=device)  # of each env

    def own(self, agent: int) -> slice:
        """The envs of an agent."""
        return slice(agent * self.num_envs, (agent + 1) * self.num_envs)

    @property
    def live(self) -> list[Tensor]:
        """Everything that a rollout changes and a later one depends on, `[agents, ...]` each."""
        last, agents = self.length, self.agents
        found = [*self.envs.tensors, self.storage.obs[last], self.storage.start[last]]
        return [*(x.view(agents, -1) for x in found), self.carried.view(2, agents, -1).transpose(0, 1)]

    def load(self, agent: int, last: int) -> None:
        """The agent's own collector has collected up to its step `last`."""
        member, own = self.members[agent], self.own(agent)
        assert isinstance(member.envs, DeviceEnvs)
        assert isinstance(member.storage, DeviceStorage)
        for all_, mine in zip(self.envs.tensors, member.envs.tensors, strict=True):
            all_.view(self.agents, *mine.shape)[agent].copy_(mine)
        self.storage.obs[self.length, own].copy_(member.storage.obs[last])
        self.storage.start[self.length, own].copy_(member.storage.start[last])
        self.carried[0, own].copy_(torch.from_numpy(member.tracker.ret))
        self.carried[1, own].copy_(torch.from_numpy(member.tracker.length))

    def give(self, agent: int) -> None:
        """The agent's own collector goes on from here."""
        member, own = self.members[agent], self.own(agent)
        assert isinstance(member.envs, DeviceEnvs)
        assert isinstance(member.storage, DeviceStorage)
        for all_, mine in zip(self.envs.tensors, member.envs.tensors, strict=True):
            mine.copy_(all_.view(self.agents, *mine.shape)[agent])
        member.storage.obs[self.length].copy_(self.storage.obs[self.length, own])
        member.storage.start[self.length].copy_(self.storage.start[self.length, own])
        member.continue_from(self.length)

    def play(self) -> tuple[Tensor, Tensor]:
        """All steps: (the number of episodes that ended, what the open ones carry on)."""
        from surefoot.kernels.fused_rollout import play

        storage, length = self.storage, self.length
        storage.continue_from(length)
        noise = self._noise()
        scaled = self._shift_and_scale()
        play(self.nets.theta, self.nets.actor, scaled, self.envs.world(), noise, self._places)
        self.envs.played(length)
        return packed_episodes(*storage.flags(length), self.carried, self.columns)

    def _noise(self) -> Tensor:
        """Every agent draws from its own generator; what follows is done for all."""
        if self.nets.actor.head != CHOICE:
            return torch.cat([member.noise().rows for member in self.members], 1)
        size = (self.length, self.num_envs, self.nets.actor.params)
        drawn = [
            torch.rand(size, generator=member.generator, dtype=torch.float32, device=member.generator.device)
            for member in self.members
        ]
        return Categorical.gumbel(torch.cat(drawn, 1).to(self.carried.device))

    def learnable(self) -> Rollout:
        """The rollout with its rewards and values."""
        with self.storage.with_ends(self._places.ends):
            rollout = self.collector.learnable(self.length, 1.0)
        raw = torch.sign(self.storage.reward) if self.collector.options.sign_rewards else self.storage.reward
        scaled = raw * self._scale
        normalized = self.members[0].reward_normalizer is not None
        rollout.reward = self._normalized_rewards(rollout, scaled) if normalized else scaled.to(torch.float32)
        return rollout

    def _normalized_rewards(self, rollout: Rollout, scaled: Tensor) -> Tensor:
        """Each agent's rewards by its own normaliser, in the shapes that it has alone."""
        done, found = rollout.terminated | rollout.truncated, torch.empty_like(rollout.reward)
        for agent, member in enumerate(self.members):
            own, normalizer = self.own(agent), member.reward_normalizer
            assert isinstance(normalizer, DeviceRewardNormalizer)
            reward, ended, valid = (x[:, own].contiguous() for x in (scaled, done, rollout.valid))
            normalizer.observe(reward, ended, valid, member.operations)
            found[:, own] = normalizer.scale(reward).to(torch.float32)
        return found

    def sound(self) -> Tensor:
        """`[agents]` bool: whether all numbers of the agent's rollout are finite."""
        return self._places.ends.fine.view(self.agents, -1).all(1)

    def _shift_and_scale(self) -> tuple[Tensor, Tensor] | None:
        found = [member.policy.normalizer.shift_and_scale for member in self.members if member.policy.normalizer]
        both = [pair for pair in found if pair is not None]
        return (torch.stack([shift for shift, _ in both]), torch.stack([scale for _, scale in both])) if both else None

    def _normalize(self, obs: Tensor) -> Tensor:
        """Rows of the envs `[..., agents·N, D]`, each by the normaliser of its agent."""
        scaled = self._shift_and_scale()
        if scaled is None:
            return obs
        shift, scale = (x[:, None].expand(-1, self.num_envs, -1).reshape(-1, x.shape[-1]) for x in scaled)
        return ((obs - shift) * scale).clamp_(-NORMALIZED_CLIP, NORMALIZED_CLIP)
