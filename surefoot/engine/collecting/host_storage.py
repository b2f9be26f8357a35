"""A rollout in host memory, for envs that return NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.rollouts import scale_rewards
from surefoot.envs.rewards import RewardNormalizer
from surefoot.types import Context, Rollout

if TYPE_CHECKING:
    from surefoot.engine.contract import Actor
    from surefoot.engine.episodes import EpisodeTracker
    from surefoot.math.operations import Operations
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.types import Array, Envs, Info, Step


class HostStorage:
    """All data as `[T, N]`, filled in place; the data for learning is copied to `device` as a whole."""

    def __init__(
        self,
        policy: ActorCritic,
        envs: Envs,
        shape: tuple[int, int],
        device: torch.device,
        tracker: EpisodeTracker,
        reward_gamma: float | None = None,
    ) -> None:
        self.policy, self.device, self.tracker = policy, device, tracker
        self.batched_actions, self.num_envs = envs.batched_actions, shape[1]
        actions, layout, (length, num_envs) = policy.actions, envs.layout, shape
        self.obs = self._lasting(torch.from_numpy(np.zeros((length + 1, num_envs, *layout.shape), layout.dtype)))
        self.action = torch.zeros((*shape, *actions.shape), dtype=actions.dtype, device="cpu")
        self.params = torch.zeros((*shape, actions.num_params), dtype=torch.float32, device="cpu")
        self.log_prob = torch.zeros(shape, dtype=torch.float32, device="cpu")  # if the actor computes it
        self.reward = np.zeros(shape)  # raw, float64
        flags = (torch.zeros(shape, dtype=torch.bool, device="cpu") for _ in range(3))
        self.terminated, self.truncated, self.valid = flags
        self.start = torch.ones((length + 1, num_envs), dtype=torch.bool, device="cpu")  # an episode begins
        # The same memory as NumPy arrays: asking a tensor for them at every step would take as long as the copies.
        self._obs, self._action = self.obs.numpy(), self.action.numpy()
        self._terminated, self._truncated, self._valid = (
            x.numpy() for x in (self.terminated, self.truncated, self.valid)
        )
        self.final: list[tuple[int, Array]] = []  # (t·N + n, last observation) of truncations
        self.final_memory: list[Tensor] = []  # the memory before those observations
        self._episodes = np.zeros(num_envs, np.int64)
        self.normalizer = None if reward_gamma is None else RewardNormalizer(num_envs, reward_gamma)

    def _lasting(self, rows: Tensor) -> Tensor:
        """The memory for the observations."""
        return rows

    def uploaded(self, used: int) -> Tensor:
        """The observations of the rollout, on the device."""
        return self.obs[: used + 1].to(self.device)

    def clear(self) -> None:
        self.final, self.final_memory = [], []

    def start_with(self, obs: Array) -> None:
        self._obs[0] = obs
        self.start[0] = True

    def continue_from(self, last: int) -> None:
        for rows in (self._obs, self.start.numpy()):
            rows[0] = rows[last]

    def to_env(self, t: int, own: slice) -> object:
        """The actions of these envs in the form that they expect."""
        actions = self.policy.actions
        to_env = actions.to_vector_env if self.batched_actions else actions.to_env
        return to_env(self._action[t, own])

    def store(self, t: int, own: slice, step: Step, memory: Tensor | None) -> None:
        """Store what the envs in `own` returned at step t. `memory`: of all envs."""
        terminated, truncated = self._terminated, self._truncated
        self._obs[t + 1, own], self.reward[t, own], self._valid[t, own] = step.obs, step.reward, step.valid
        terminated[t, own], truncated[t, own] = step.terminated, step.truncated
        if step.life_lost is not None:
            terminated[t, own] |= step.life_lost
        self.tracker.add(step, own.start)
        for index, final in step.final_obs.items():
            env = own.start + index
            if truncated[t, env] and not terminated[t, env]:
                self.final.append((t * self.num_envs + env, final))
                if memory is not None:
                    self.final_memory.append(memory[env].clone())
        if memory is not None:
            self.start[t + 1, own] = torch.from_numpy(step.start)
        self._ended = (step.terminated | step.truncated) & step.valid

    def store_all(self, played: Mapping[str, Array], infos: Mapping[tuple[int, int], Info]) -> None:
        """Store a whole rollout that was played elsewhere; the names in `played` are `WorkerRollouts.arrays`."""
        terminated, truncated, valid = (played[name] for name in ("terminated", "truncated", "valid"))
        self._obs[1:], self.start.numpy()[1:] = played["obs"][1:], played["start"][1:]
        for name in ("params", "action", "log_prob"):
            getattr(self, name).numpy()[...] = played[name]
        self.reward[...], self._valid[...], self._truncated[...] = played["reward"], valid, truncated
        np.logical_or(terminated, played["life_lost"], out=self._terminated)
        self.tracker.add_all(self.reward, self._valid, (terminated, truncated), infos)
        cut = np.argwhere(self._truncated & ~self._terminated).tolist()
        self.final = [(t * self.num_envs + env, played["final"][t, env].copy()) for t, env in cut]
        if played["memory"].size:
            self.final_memory = [torch.from_numpy(played["final_memory"][t, env].copy()) for t, env in cut]

    def count_episodes(self, t: int | None, wanted: int) -> Array:
        """`[N]` bool: the envs that have not ended `wanted` episodes after step t. t None: before the first step."""
        self._episodes = np.zeros(self.num_envs, np.int64) if t is None else self._episodes + self._ended
        active: Array = self._episodes < wanted
        return active

    @staticmethod
    def time_to_look(t: int) -> bool:
        """Whether to check after step t if all envs are done: always, because it costs nothing here."""
        return True

    def sort_finals(self) -> None:
        """Sort truncations by position, in case envs stepped at their own pace."""
        order = sorted(range(len(self.final)), key=lambda at: self.final[at][0])
        self.final = [self.final[at] for at in order]
        self.final_memory = [self.final_memory[at] for at in order] if self.final_memory else []

    def read(self, used: int, *, whole_episodes: bool) -> int:
        """The number of used steps, once the rollout is over."""
        return used

    def truncate_open(self, used: int, memory: Tensor | None) -> Array:
        """End every open episode at the last step; returns which were open, `[N]` bool."""
        last = used - 1
        open_: Array = (self.valid[last] & ~self.terminated[last] & ~self.truncated[last]).numpy()
        for index in map(int, np.flatnonzero(open_)):
            self.truncated[last, index] = True
            self.final.append((last * self.num_envs + index, self.obs[used, index].numpy().copy()))
            if memory is not None:
                self.final_memory.append(memory[index])
        return open_

    def scaled_rewards(self, used: int, scale: float, sign: bool, operations: Operations) -> Tensor:
        """The rewards used for learning, `[T, N]` float32 on the device."""
        ends = (self._terminated[:used], self._truncated[:used])
        scaled = scale_rewards(self.reward[:used], ends, self._valid[:used], scale, sign, self.normalizer, operations)
        return torch.from_numpy(scaled.astype(np.float32)).to(self.device)

    def rollout(self, used: int, reward: Tensor, actor: Actor, memory: Tensor | None, remaining: float) -> Rollout:
        """The rollout on the device, without values yet. `memory`: the memory before the first step."""
        device, policy = self.device, self.policy
        obs = self.uploaded(used)
        params, action = self.params[:used].to(device), self.action[:used].to(device)
        context = final_memory = None
        if memory is not None:
            context = Context(self.start[: used + 1].to(device, copy=True), memory)
            final_memory = torch.stack(self.final_memory) if self.final_memory else memory[:0]
        inputs = policy.normalize(obs)
        index, final_inputs = self._finals(inputs)
        log_prob = self.log_prob[:used].clone() if actor.fills_log_prob else actor.log_prob(params, action)
        return Rollout(
            obs=obs,
            inputs=inputs,
            action=action,
            dist_params=params,
            log_prob=log_prob,
            reward=reward,
            terminated=self.terminated[:used].to(device),
            truncated=self.truncated[:used].to(device),
            valid=self.valid[:used].to(device),
            value=params.new_empty(0),
            next_value=params.new_empty(0),
            final_index=index,
            final_inputs=final_inputs,
            remaining=remaining,
            context=context,
            final_memory=final_memory,
            complete=device.type != "cpu" and bool(self.valid[:used].all()),
        )

    def _finals(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Where episodes were truncated (t·N + n), and the normalised observation there."""
        if not self.final:  # a shortcut: most rollouts have none, and for short rollouts small costs matter
            return torch.empty(0, dtype=torch.int64, device=self.device), inputs[0, :0]
        index, obs = zip(*self.final, strict=True)
        final = torch.from_numpy(np.stack(obs)).to(self.device, self.obs.dtype)
        return torch.tensor(index, dtype=torch.int64, device=self.device), self.policy.normalize(final)

    def require_sound(self, used: int, rollout: Rollout) -> None:
        """Nothing to do: NumPy envs are checked at every step."""

    def restore(self, obs: Tensor, start: Tensor, fresh: Mapping[int, Array]) -> None:
        """Continue from a checkpoint. `fresh`: envs that could not be restored, with their new first observations."""
        self.obs[0], self.start[0] = obs, start
        for index, shown in fresh.items():
            self.obs[0, index] = torch.from_numpy(np.asarray(shown))
            self.start[0, index] = True
