"""A rollout on the device, for envs that return tensors: nothing is read on the host before it is complete.

A simulator and the policy on a GPU thus run without waiting for Python; waiting for the device at every step would cost
more than the step. Episode statistics, faults, and truncations with their final observations are collected afterwards,
once per rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.collecting.device_episodes import ended_episodes
from surefoot.engine.collecting.device_faults import Shown, require_sound
from surefoot.engine.episodes import EpisodeColumns
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.device_rewards import DeviceRewardNormalizer
from surefoot.errors import UsageError
from surefoot.policies.actions.model import torch_dtype
from surefoot.types import Context, Rollout, Step, TensorStep

if TYPE_CHECKING:
    from surefoot.engine.contract import Actor
    from surefoot.engine.episodes import EpisodeTracker
    from surefoot.envs.tensor_envs import TensorEnvs
    from surefoot.kernels.fused_rollout import Ends, Played
    from surefoot.math.operations import Operations
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array

LOOK_EVERY = 32  # whole-episode collection checks every so many steps whether all envs are done


class DeviceStorage:
    """Like `HostStorage`, on the policy's device."""

    def __init__(
        self,
        policy: ActorCritic,
        envs: TensorEnvs,
        shape: tuple[int, int],
        device: torch.device,
        tracker: EpisodeTracker,
        reward_gamma: float | None = None,
    ) -> None:
        self.envs, self.device, self.tracker, self.normalize = envs, device, tracker, policy.normalize
        self._send = policy.actions.tensor_sender(envs.device)
        (length, num_envs), actions, layout = shape, policy.actions, envs.layout

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        kind = torch_dtype(layout.dtype)
        self.obs = zeros(length + 1, num_envs, *layout.shape, dtype=kind)
        self.action = zeros(*shape, *actions.shape, dtype=actions.dtype)
        self.params, self.log_prob = zeros(*shape, actions.num_params), zeros(*shape)
        exact = torch.float32 if device.type == "mps" else torch.float64
        self.reward = zeros(*shape, dtype=exact)  # raw
        flags = (zeros(*shape, dtype=torch.bool) for _ in range(4))
        self.terminated, self.truncated, self.valid, self._ended = flags  # `_ended`: the real end, not a lost life
        self.start = ~zeros(length + 1, num_envs, dtype=torch.bool)
        # We cannot know here which steps are truncations, so every step keeps what a truncation would need.
        separate = envs.separate_final
        self._final = zeros(*shape, *layout.shape, dtype=kind) if separate else None
        self._given = np.zeros(length, np.bool_)  # steps whose final observations the env gave
        remembered = 0 if policy.memory is None else policy.memory.size
        self._memories = zeros(*shape, remembered) if separate and remembered else None
        self._info = {key: zeros(*shape, dtype=exact) for key in tracker.info_keys}
        self._info_given = {key: np.zeros(length, np.bool_) for key in self._info}
        self._everyone = ~zeros(num_envs, dtype=torch.bool)
        self._episodes = zeros(num_envs, dtype=torch.int64)
        self._complete = False
        self._open = zeros(num_envs, dtype=torch.bool)
        self._cut = zeros(0, num_envs, dtype=torch.bool)  # truncations of the last rollout
        self.normalizer = None if reward_gamma is None else DeviceRewardNormalizer(num_envs, reward_gamma, device)
        self.one_cut = False  # no env is truncated twice in a rollout
        self.played: Ends | None = None  # of the rollout that is estimated, if a kernel has collected them

    @contextmanager
    def with_ends(self, ends: Ends) -> Iterator[None]:
        """A kernel has collected where episodes of the rollout ended."""
        self.played = ends
        try:
            yield
        finally:
            self.played = None

    def clear(self) -> None:
        """Nothing to do: everything is overwritten."""

    def start_with(self, obs: Tensor) -> None:
        with own_modes(gradients=False):
            self.obs[0] = obs
            self.start[0] = True

    def continue_from(self, last: int) -> None:
        self.obs[0], self.start[0] = self.obs[last].clone(), self.start[last].clone()

    def to_env(self, t: int, own: slice) -> object:
        """The actions of a step in the form that the envs expect."""
        with own_modes(gradients=False):
            return self._send(self.action[t].to(self.envs.device))

    def store(self, t: int, own: slice, step: TensorStep, memory: Tensor | None) -> None:
        """Store what the envs returned at step t, detached from any gradients of the simulator."""
        with own_modes(gradients=False):
            for column, value in self.columns(step, memory):
                column[t] = value
            self.note(t, step)

    def columns(self, step: TensorStep, memory: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """What is stored of a step, as pairs: the places for all T steps, and what belongs into this step's."""
        ended, lost = step.ended, step.life_lost
        yield self.obs[1:], step.obs
        yield self.reward, step.reward
        yield self.terminated, step.terminated if lost is None else step.terminated | lost
        yield self.truncated, step.truncated
        yield self._ended, ended
        yield self.valid, self._everyone if step.valid is None else step.valid
        yield self.start[1:], ended if step.first is None else step.first
        if self._final is not None and step.final_obs is not None:
            yield self._final, step.final_obs
        if self._memories is not None and memory is not None:
            yield self._memories, memory
        for key in self._info.keys() & step.info.keys():
            yield self._info[key], step.info[key]

    def note(self, t: int, step: TensorStep) -> None:
        """What the host itself has to know of a step: what the envs gave."""
        self._given[t] = step.final_obs is not None
        for key, given in self._info_given.items():
            given[t] = key in step.info

    def staged(self) -> TensorStep:
        """Fixed places for one step of the envs, on the device, of everything that any step may have."""
        like, flag = torch.zeros_like, self._everyone
        apart = self.envs.separate_final
        return TensorStep(
            obs=like(self.obs[0]),
            reward=like(self.reward[0]),
            terminated=like(flag),
            truncated=like(flag),
            valid=None if apart else like(flag),
            first=None if apart else like(flag),
            final_obs=None if self._final is None else like(self._final[0]),
            life_lost=like(flag),
            info={key: like(column[0]) for key, column in self._info.items()},
        )

    def places(self) -> Played:
        """Where a kernel puts whole rollouts, with the final observation of every episode that ends."""
        from surefoot.kernels.fused_rollout import Ends, Played

        assert self._final is not None
        self._given[:] = True
        self.valid.fill_(True)
        self._complete = self.device.type != "cpu"
        flags = (self.terminated, self.truncated, self._ended, self.start)
        ends = Ends(*(torch.zeros_like(each) for each in (self.obs[0], self._episodes, self._open)))
        return Played(self.obs, self.action, self.params, self.reward, *flags, self._final, ends)

    def count_episodes(self, t: int | None, wanted: int) -> Tensor:
        """`[N]` bool: the envs that have not ended `wanted` episodes after step t. t None: before the first step."""
        with own_modes(gradients=False):
            if t is None:
                self._episodes.zero_()
            else:
                self._episodes += self._ended[t] & self.valid[t]
            return (self._episodes < wanted).to(self.envs.device)

    @staticmethod
    def time_to_look(t: int) -> bool:
        """Whether to check after step t if all envs are done; not every step, because it waits for the device."""
        return (t + 1) % LOOK_EVERY == 0

    def sort_finals(self) -> None:
        """Nothing to do: they are already in order."""

    def read(self, used: int, *, whole_episodes: bool) -> int:
        """The number of used steps. The only place where the host reads flags and rewards, all at once, or (from a GPU)
        just the episodes that ended.
        """
        # Only fake steps between episodes and idle envs are invalid.
        self._complete = self.device.type != "cpu" and self.envs.separate_final and not whole_episodes
        if self._info or self.device.type != "cuda":
            return self._read_every_step(used, whole_episodes)
        if whole_episodes:
            used = int(self.valid[:used].any(1).nonzero()[-1]) + 1
        self.count_on_device(*self.flags(used))
        self.mark_ends(used)
        if not self._given[:used].all():
            self._require_given(self._cut.cpu().numpy())
        return used

    def flags(self, used: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Raw rewards, and which steps terminated, ended and are valid, `[T, N]` each."""
        return self.reward[:used], self.terminated[:used], self._ended[:used], self.valid[:used]

    def mark_ends(self, used: int) -> None:
        self._cut, last = self.truncated[:used] & ~self.terminated[:used], used - 1
        self._open = self.valid[last] & ~self.terminated[last] & ~self.truncated[last]

    def _read_every_step(self, used: int, whole_episodes: bool) -> int:
        columns = (self.reward, self._ended, self.terminated, self.truncated, self.valid)
        reward, ended, terminated, truncated, valid = (x[:used].cpu().numpy() for x in columns)
        if whole_episodes:  # drop what came after the last wanted episode
            used = int(np.flatnonzero(valid.any(1))[-1]) + 1
        cut = truncated[:used] & ~terminated[:used]
        self._cut = torch.from_numpy(cut).to(self.device)
        self._open = torch.from_numpy(valid[used - 1] & ~terminated[used - 1] & ~truncated[used - 1]).to(self.device)
        self._require_given(cut)
        self._count(used, reward, terminated, ended, valid)
        return used

    def count_on_device(self, reward: Tensor, terminated: Tensor, ended: Tensor, valid: Tensor) -> None:
        """Returns and lengths of the episodes that ended, for thousands of envs."""
        carried = np.stack([self.tracker.ret, self.tracker.length.astype(np.float64)])
        found = ended_episodes(reward, terminated, ended, valid, torch.from_numpy(carried).to(self.device))
        read = torch.cat([found.columns.T.flatten(), found.ret, found.length]).cpu().numpy()  # waits once
        finished, rest = np.split(read, [found.columns.numel()])
        columns = EpisodeColumns.of_numbers(*finished.reshape(4, -1))
        self.tracker.finish_many(columns, *rest.reshape(2, -1))

    def truncate_open(self, used: int, memory: Tensor | None) -> Array:
        """End every open episode at the last step; returns which were open, `[N]` bool."""
        last, here = used - 1, self._open
        self.truncated[last] |= here
        self._cut[last] |= here
        if self._final is not None:
            wide = here.reshape(-1, *(1,) * (self._final.dim() - 2))
            self._final[last] = torch.where(wide, self.obs[used], self._final[last])
        open_: Array = here.cpu().numpy()
        return open_

    def scaled_rewards(self, used: int, scale: float, sign: bool, operations: Operations) -> Tensor:
        """The rewards used for learning, `[T, N]` float32, computed on the device."""
        raw = self.reward[:used]
        scaled = (torch.sign(raw) if sign else raw) * scale
        if self.normalizer is not None:
            done = self.terminated[:used] | self.truncated[:used]
            self.normalizer.observe(scaled, done, self.valid[:used], operations)
            scaled = self.normalizer.scale(scaled)
        return scaled.to(torch.float32)

    def rollout(self, used: int, reward: Tensor, actor: Actor, memory: Tensor | None, remaining: float) -> Rollout:
        """The rollout, without values yet. `memory`: the memory before the first step."""
        normalize, obs, params, action = self.normalize, self.obs[: used + 1], self.params[:used], self.action[:used]
        final_index, final = self._finals(used)
        context = final_memory = None
        if memory is not None:
            context = Context(self.start[: used + 1].clone(), memory)
            kept = self._memories
            final_memory = memory[:0] if kept is None else kept.flatten(0, 1)[final_index]
        log_prob = self.log_prob[:used].clone() if actor.fills_log_prob else actor.log_prob(params, action)
        return Rollout(
            obs=obs,
            inputs=normalize(obs),
            action=action,
            dist_params=params,
            log_prob=log_prob,
            reward=reward,
            terminated=self.terminated[:used],
            truncated=self.truncated[:used],
            valid=self.valid[:used],
            value=params.new_empty(0),
            next_value=params.new_empty(0),
            final_index=final_index,
            final_inputs=normalize(final),
            remaining=remaining,
            context=context,
            final_memory=final_memory,
            complete=self._complete,
        )

    def _finals(self, used: int) -> tuple[Tensor, Tensor]:
        """(the steps t·N + n that were truncated, the observations that their episodes ended with)."""
        if self.played is not None:
            return self.played.index, self.played.final
        if self._final is None:
            return self._cut.flatten()[:0].nonzero().flatten(), self.obs[:0, 0]
        if self.one_cut:
            return self._one_of_each(self._final, used)
        index = self._cut.flatten().nonzero().flatten()
        return index, self._final.flatten(0, 1)[index]

    def _one_of_each(self, final: Tensor, used: int) -> tuple[Tensor, Tensor]:
        """The same with one step of every env, so that nothing waits for their number. An env that was not truncated
        gives its last step, which ended with what it shows now.
        """
        some, everyone = self._cut.any(0), torch.arange(self._cut.shape[1], dtype=torch.int64, device=self.device)
        time = torch.where(some, self._cut.to(torch.uint8).argmax(0), used - 1)
        wide = some.reshape(-1, *(1,) * (final.dim() - 2))
        return time * len(everyone) + everyone, torch.where(wide, final[time, everyone], self.obs[used])

    def restore(self, obs: Tensor, start: Tensor, fresh: Mapping[int, Array]) -> None:
        """Continue from a checkpoint. `fresh`: envs that could not be restored, with their new first observations."""
        self.obs[0], self.start[0] = obs.to(self.device), start.to(self.device)
        for index, shown in fresh.items():
            self.obs[0, index] = torch.from_numpy(np.asarray(shown)).to(self.device)
            self.start[0, index] = True

    def _require_given(self, cut: Array) -> None:
        """Raise an error if a truncation in `cut` `[T, N]` has no final observation."""
        missing = cut & ~self._given[: len(cut), None]
        if self._final is not None and missing.any():
            t, index = np.argwhere(missing)[0]
            raise UsageError(
                f"{self.envs.envs} declares SAME_STEP autoreset, but when env {index} was truncated at step {t} of the "
                "rollout info['final_obs'] was not there; without it the value of the episode's end is unknown"
            )

    def require_sound(self, used: int, rollout: Rollout) -> None:
        """The checks that NumPy envs get at every step. Waits for the device once, unless flags are not bool."""
        self.envs.odd_flags()
        require_sound(self._shown(used, rollout), rollout.final_index)

    def _shown(self, used: int, rollout: Rollout) -> Shown:
        mask, numbers = self.envs.layout.mask, (rollout.obs, self.reward[:used], rollout.final_inputs)
        return Shown(*numbers) if mask is None else Shown(*numbers, self.obs[:used, :, mask], self.envs.masks.sizes)

    def _count(self, used: int, reward: Array, terminated: Array, ended: Array, valid: Array) -> None:
        """Returns and lengths of the episodes that ended."""
        columns = {key: column[:used].cpu().numpy() for key, column in self._info.items()}
        nothing = np.zeros(0)
        for t in range(used):
            last = {
                int(index): {key: column[t, index] for key, column in columns.items() if self._info_given[key][t]}
                for index in np.flatnonzero(ended[t])
            }
            self.tracker.add(Step(nothing, reward[t], terminated[t], ended[t], valid[t], final_info=last))
