"""The rollout loop: begin, step, finish, with interchangeable storage and stepping."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np

from surefoot.engine.collecting.device_storage import DeviceStorage
from surefoot.engine.collecting.host_storage import HostStorage
from surefoot.engine.collecting.shared_state import merged
from surefoot.engine.random_state import STATE_SHAPE, continued
from surefoot.engine.rollouts import fill_values
from surefoot.engine.torch.modes import own_modes
from surefoot.envs.device_envs import elsewhere_shape, from_elsewhere
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.errors import EnvError
from surefoot.schema import ArrayOf, Either, Nothing, Optional, Record, Shape
from surefoot.types import Restorable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from surefoot.engine.collecting.storage import Storage
    from surefoot.engine.contract import Actor, CollectorOptions
    from surefoot.engine.episodes import TrackerState
    from surefoot.envs.rewards import RewardState
    from surefoot.math.operations import Operations
    from surefoot.policies.actor_critic import NoiseRows
    from surefoot.types import Envs, Rollout

    Stepping: TypeAlias = Callable[["Collector", NoiseRows, Tensor | None], int]


class CollectorState(TypedDict):
    noise: Tensor
    tracker: TrackerState
    reward_normalizer: RewardState | None
    last_obs: Tensor | None
    memory: Tensor | None
    start: Tensor | None
    envs: Mapping[str, object] | None


class Collector:
    """Fills one preallocated rollout per call.

    A rollout has either a fixed length (`rollout_length` steps; episodes continue in the next rollout), or whole
    episodes (`episodes_per_env` from every env, which is then idle: a fixed budget of steps would keep short episodes
    and drop long ones).
    """

    host_storage = HostStorage  # for envs that return NumPy arrays

    def __init__(
        self, envs: Envs, actor: Actor, options: CollectorOptions, operations: Operations, stepping: Stepping
    ) -> None:
        """`stepping`: plays up to `length` steps into the storage and returns how many."""
        self.envs, self.actor, self.policy, self.options = envs, actor, actor.policy, options
        self.group = group = options.group
        self.operations, self.stepping = operations if group.size == 1 else operations.over_all(group.sum_), stepping
        self.generator, self.timer = options.generator, options.timer
        self.episodes_per_env, self.reset_each_rollout = options.episodes_per_env, options.reset_each_rollout
        self.tracker = options.tracker(envs.num_envs)
        self.device = self.policy.device
        length, episodes = options.rollout_length, options.episodes_per_env
        # Whole episodes: one more row each, for the fake step that NEXT_STEP autoreset puts between two of them.
        self.length = length if episodes is None else (length + 1) * episodes
        self.most_steps = length * (episodes or 1) * envs.num_envs
        shape = (self.length, envs.num_envs)
        self.storage: Storage
        kept = (self.device, self.tracker, options.reward_gamma)
        if isinstance(envs, TensorEnvs):
            self.storage = DeviceStorage(self.policy, envs, shape, *kept)
        else:
            self.storage = self.host_storage(self.policy, envs, shape, *kept)
        self.reward_normalizer = self.storage.normalizer
        self._memory = self.policy.initial_memory(envs.num_envs)  # the current memory state
        self._last: int | None = None  # index of the last rollout's final observation

    def collect(self, remaining: float = 1.0) -> Rollout:
        """Collect one rollout with the current policy. `remaining` is passed on to the batch, for schedules."""
        self._begin()
        with own_modes(gradients=False):
            memory = None if self._memory is None else self._memory.clone()
            noise = self.noise()
        used = self.stepping(self, noise, memory)
        with self.timer.phase("act"), own_modes(gradients=False):
            used = self.storage.read(used, whole_episodes=self.episodes_per_env is not None)
            if self.reset_each_rollout:
                self._end_open_episodes(used, memory)
            rollout = self._finish(used, remaining)
        self._memory = memory
        return rollout

    def noise(self) -> NoiseRows:
        """Every process draws the numbers for all envs of the run, and uses those of its own."""
        own, group = self.envs.num_envs, self.group
        noise = self.policy.noise(self.length, own * group.size, self.generator)
        return noise if group.size == 1 else noise.of_envs(slice(own * group.index, own * (group.index + 1)))

    def choose(self, t: int, own: slice, noise: NoiseRows, memory: Tensor | None) -> object:
        """The actions of the envs in `own` at step t, in the form that the envs expect."""
        storage = self.storage
        start = None if memory is None else storage.start[t, own]
        out = (storage.params[t, own], storage.action[t, own], storage.log_prob[t, own])
        self.actor.act(self.shown(t, own), noise[t].of(own), start, None if memory is None else memory[own], out)
        return storage.to_env(t, own)

    def shown(self, t: int, own: slice) -> Tensor:
        """The observations for which the policy acts."""
        return self.storage.obs[t, own]

    def past_limit(self) -> EnvError:
        return EnvError(
            f"an episode ran past the env's own limit of {self.options.rollout_length} steps; check its TimeLimit"
        )

    def continue_from(self, last: int | None) -> None:
        """Envs and storage have been brought to the end of a rollout of this many steps; None: before the first one."""
        self._last = last

    def start(self) -> int:
        """Reset the envs before the first rollout. Returns the step of the storage at which the next one begins."""
        if self._last is None:
            self._begin()
            self._last = 0
        return self._last

    def _begin(self) -> None:
        storage = self.storage
        storage.clear()
        # After whole episodes our own envs are at the start of an episode, but a vector env has continued.
        ran_on = self.episodes_per_env is not None and not self.envs.exact_seeds
        if self._last is not None and not self.reset_each_rollout and not ran_on:
            storage.continue_from(self._last)
            return
        storage.start_with(self.envs.reset())
        self.tracker.cut(np.zeros(self.envs.num_envs, np.bool_))
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()

    def _end_open_episodes(self, used: int, memory: Tensor | None) -> None:
        """The horizon ends the episodes: open ones are truncated at the last step and bootstrapped there."""
        open_ = self.storage.truncate_open(used, memory)
        # Count only the episode that an env started the rollout with: it is complete. Later ones may be cut short, and
        # counting only those that are not would favour short episodes.
        self.tracker.cut(open_ & (self.tracker.length == used))
        self.tracker.keep_first()

    def _finish(self, used: int, remaining: float) -> Rollout:
        self._last = used
        rollout = self.learnable(used, remaining)
        self.storage.require_sound(used, rollout)
        return rollout

    def learnable(self, used: int, remaining: float) -> Rollout:
        """The rollout with its rewards and values, without gradients."""
        options = self.options
        reward = self.storage.scaled_rewards(used, options.reward_scale, options.sign_rewards, self.operations)
        rollout = self.storage.rollout(used, reward, self.actor, self._memory, remaining)
        return fill_values(rollout, self.actor)

    def state_dict(self, *, mid_rollout: bool = False) -> CollectorState:
        """Everything that the next rollout depends on, except the policy. `mid_rollout`: the envs have moved on.

        It is the state of all envs of the run: several processes must ask for it together.
        """
        own = self._own_state(mid_rollout)
        return own if self.group.size == 1 else merged(self.group.gather(own))

    def _own_state(self, mid_rollout: bool) -> CollectorState:
        normalizer, last = self.reward_normalizer, self._last
        envs = None
        if isinstance(self.envs, Restorable) and last is not None and not mid_rollout:
            envs = self.envs.state_dict()
        return {
            "noise": self.generator.get_state(),
            "tracker": self.tracker.state_dict(),
            "reward_normalizer": None if normalizer is None else normalizer.state_dict(),
            "last_obs": None if last is None else self.storage.obs[last].clone(),
            "memory": self._memory,
            "start": None if last is None else self.storage.start[last].clone(),
            "envs": envs,
        }

    def state_shape(self) -> Shape:
        normalizer, storage = self.reward_normalizer, self.storage
        return Record(
            noise=STATE_SHAPE,
            tracker=self.tracker.state_shape(),
            reward_normalizer=Nothing() if normalizer is None else normalizer.state_shape(),
            last_obs=Optional(_like(storage.obs[0])),
            memory=Nothing() if self._memory is None else _like(self._memory),
            start=Optional(_like(storage.start[0])),
            envs=self._envs_shape(),
        )

    def _envs_shape(self) -> Shape:
        """The shape of the envs' state, or of that of the same envs on a GPU or on the host, if the run began there."""
        envs = self.envs
        if not isinstance(envs, Restorable):
            return Nothing()
        return Optional(Either((envs.state_shape(), elsewhere_shape(envs, envs.num_envs, envs.action_space.shape))))

    def load_state_dict(self, state: CollectorState) -> list[int]:
        """Returns the envs of this process whose open episode could not be restored; they start a new one.

        If there are several processes, each already has its part of the state (`part_of`).
        """
        self.generator = continued(self.generator, state["noise"])
        self.tracker.load_state_dict(state["tracker"])
        if self.reward_normalizer is not None and state["reward_normalizer"] is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        if state["last_obs"] is None or state["start"] is None:
            return []
        if state["envs"] is None or not isinstance(self.envs, Restorable) or from_elsewhere(self.envs, state["envs"]):
            return list(range(self.envs.num_envs))  # `_begin` will reset them
        if state["memory"] is not None:
            self._memory = state["memory"].to(self.device)
        lost = self.envs.load_state_dict(state["envs"], state["last_obs"].numpy())
        self._last = 0
        fresh = {index: self.envs.observations[index] for index in lost}
        self.storage.restore(state["last_obs"], state["start"], fresh)
        for index in lost:
            self.tracker.forget(index)
            if self.reward_normalizer is not None:
                self.reward_normalizer.forget(index)
        return lost


def _like(tensor: Tensor) -> Shape:
    return ArrayOf(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
