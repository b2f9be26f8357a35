"""The rollout loop."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.collector_state import collector_shape
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.rollouts import fill_values, scale_rewards
from surefoot.engine.timing import PhaseTimer
from surefoot.engine.torch.modes import own_modes
from surefoot.errors import EnvError
from surefoot.types import Context, Restorable, Rollout, SteppedInParts

if TYPE_CHECKING:
    from surefoot.envs.rewards import RewardNormalizer
    from surefoot.policies.actor_critic import ActorCritic, Noise
    from surefoot.schema import Shape
    from surefoot.types import Array, Envs, Step

Item = TypeVar("Item")


class Collector:
    """Fills one preallocated rollout per call.

    Two ways to cut time: fixed length (`rollout_length` steps, episodes run on into the next rollout), or whole
    episodes (`episodes_per_env` of them from every env, which then stands idle: a fixed budget of steps would keep
    short episodes and drop long ones).
    """

    # What is drawn for an env does not depend on those beside it, to the bit: they need not act together.
    rows_alone = False
    compiled: Any = None  # twins of what is computed over a rollout (`kernels.scan`); None: the functions themselves

    def __init__(
        self,
        envs: Envs,
        policy: ActorCritic,
        rollout_length: int,
        generator: torch.Generator,
        *,
        episodes_per_env: int | None = None,
        reset_each_rollout: bool = False,
        reward_scale: float = 1.0,
        sign_rewards: bool = False,
        reward_normalizer: RewardNormalizer | None = None,
        tracker: EpisodeTracker | None = None,
        timer: PhaseTimer | None = None,
    ) -> None:
        self.envs, self.policy, self.generator = envs, policy, generator
        self.episodes_per_env, self.reset_each_rollout = episodes_per_env, reset_each_rollout
        self.reward_scale, self.sign_rewards, self.reward_normalizer = reward_scale, sign_rewards, reward_normalizer
        self.tracker = tracker or EpisodeTracker(envs.num_envs)
        self.timer = timer or PhaseTimer()
        self.device = next(policy.parameters()).device
        self.rollout_length = rollout_length
        # Whole episodes: one more row each, for the fake step that NEXT_STEP autoreset puts between two of them.
        self.length = rollout_length if episodes_per_env is None else (rollout_length + 1) * episodes_per_env
        self.most_steps = rollout_length * (episodes_per_env or 1) * envs.num_envs
        self._allocate(self.length, envs.num_envs)
        self._last: int | None = None  # where the last rollout's final observation stands

    def _allocate(self, length: int, num_envs: int) -> None:
        shape, actions = (length, num_envs), self.policy.actions
        layout = self.envs.layout
        self._obs = torch.from_numpy(np.zeros((length + 1, num_envs, *layout.shape), layout.dtype))
        self._action = torch.zeros((*shape, *actions.shape), dtype=actions.dtype, device="cpu")
        self._params = torch.zeros((*shape, actions.num_params), dtype=torch.float32, device="cpu")
        self._reward = np.zeros(shape)  # raw, float64
        flags = (torch.zeros(shape, dtype=torch.bool, device="cpu") for _ in range(3))
        self._terminated, self._truncated, self._valid = flags
        self._final: list[tuple[int, Array]] = []
        # Of a policy with memory: where episodes begin, what it remembers now, and what it did at truncations.
        self._start = torch.ones((length + 1, num_envs), dtype=torch.bool, device="cpu")
        self._memory = self.policy.initial_memory(num_envs)
        self._final_memory: list[Tensor] = []

    def collect(self, remaining: float = 1.0) -> Rollout:
        """One rollout with the policy as it is now. `remaining` is passed on to the batch, for schedules."""
        self._begin(self._obs.numpy())
        with own_modes(gradients=False):
            memory = None if self._memory is None else self._memory.clone()
            noise = self.policy.noise(self.length, self.envs.num_envs, self.generator)
        if self.rows_alone and self.episodes_per_env is None and isinstance(self.envs, SteppedInParts):
            used = self._step_parts(self.envs, noise, memory)
        else:
            used = self._step_all(noise, memory)
        if self.reset_each_rollout:
            self._end_open_episodes(used, memory)
        with self.timer.phase("act"), own_modes(gradients=False):
            rollout = self._finish(used, remaining)
        self._memory = memory
        return rollout

    def _step_all(self, noise: Sequence[Noise], memory: Tensor | None) -> int:
        """All envs step together; returns how often. `memory` is changed in place."""
        everyone, wanted = slice(0, self.envs.num_envs), self.episodes_per_env
        episodes = np.zeros(self.envs.num_envs, np.int64)
        active = None if wanted is None else np.ones(self.envs.num_envs, np.bool_)
        for t in range(self.length):
            start = perf_counter()
            sent = self._choose(t, everyone, noise[t], memory)
            acted = perf_counter()
            step = self.envs.step(sent, active)
            stepped = perf_counter()
            self._store(t, everyone, step, memory)
            if wanted is not None:
                episodes += (step.terminated | step.truncated) & step.valid
                active = episodes < wanted
            self.timer.add("act", acted - start + perf_counter() - stepped)
            self.timer.add("env", stepped - acted)
            if active is not None and not active.any():
                return t + 1
        if active is not None:
            raise EnvError(past_limit(self.rollout_length))
        return self.length

    def _step_parts(self, envs: SteppedInParts, noise: Sequence[Noise], memory: Tensor | None) -> int:
        """As `_step_all`, but every part goes on as soon as it has stepped: it does not wait for slower ones, and
        acting for it costs nothing while they step. The same bytes, in another order of time.
        """
        times, ended = [0] * len(envs.parts), list[tuple[int, int]]()

        def send(part: int) -> None:
            own = envs.parts[part]
            envs.send(part, self._choose(times[part], own, noise[times[part]].of(own), memory))

        finished, before = self.tracker.finished, len(self.tracker.finished)
        with self.timer.phase("act"):
            for part in range(len(times)):
                send(part)
        while min(times) < self.length:
            start = perf_counter()
            answered = envs.answered()
            stepped = perf_counter()
            for part in answered:
                self._store(times[part], envs.parts[part], envs.take(part), memory)
                ended += [(times[part], episode.env) for episode in finished[before + len(ended) :]]
                times[part] += 1
                if times[part] < self.length:
                    send(part)
            self.timer.add("env", stepped - start)
            self.timer.add("act", perf_counter() - stepped)
        finished[before:] = in_order(finished[before:], ended)
        places = [place for place, _ in self._final]
        self._final, self._final_memory = in_order(self._final, places), in_order(self._final_memory, places)
        return self.length

    def _choose(self, t: int, own: slice, noise: Noise, memory: Tensor | None) -> Any:
        """The actions of envs `own` in step t, as those take them."""
        self._act(t, own, noise, None if memory is None else memory[own])
        actions = self.policy.actions
        to_env = actions.to_vector_env if self.envs.batched_actions else actions.to_env
        return to_env(self._action[t, own].numpy())

    def _store(self, t: int, own: slice, step: Step, memory: Tensor | None) -> None:
        """What envs `own` returned for it. `memory`: of all envs."""
        obs, terminated, truncated = self._obs.numpy(), self._terminated.numpy(), self._truncated.numpy()
        obs[t + 1, own], self._reward[t, own], self._valid.numpy()[t, own] = step.obs, step.reward, step.valid
        terminated[t, own], truncated[t, own] = step.terminated, step.truncated
        if step.life_lost is not None:
            terminated[t, own] |= step.life_lost
        self.tracker.add(step, own.start)
        for index, final in step.final_obs.items():
            env = own.start + index
            if truncated[t, env] and not terminated[t, env]:
                self._final.append((t * self.envs.num_envs + env, final))
                if memory is not None:
                    self._final_memory.append(memory[env].clone())
        if memory is not None:
            self._start[t + 1, own] = torch.from_numpy(step.start)

    def _act(self, t: int, own: slice, noise: Noise, memory: Tensor | None) -> None:
        """Fill in the actions of envs `own` in step t and what they were drawn from; their memory moves on in place."""
        policy = self.policy
        with own_modes(gradients=False):
            inputs = policy.normalize(self._obs[t, own].to(self.device))
            begins = None if memory is None else self._start[t, own].to(self.device)
            self._params[t, own], self._action[t, own], after = policy.act(inputs, noise, memory, begins)
            if memory is not None:
                assert after is not None
                memory.copy_(after)

    def _log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Of the actions of a whole rollout, `[T, N]`."""
        return self.policy.actions.distribution(params).log_prob(action)

    def _value(self, inputs: Tensor, context: Context | None = None) -> Tensor:
        return self.policy.value(inputs, context)

    def state_dict(self, *, mid_rollout: bool = False) -> dict[str, Any]:
        """Everything that the next rollout depends on, the policy apart. `mid_rollout`: the envs have moved on."""
        normalizer = self.reward_normalizer
        restorable = isinstance(self.envs, Restorable) and self._last is not None and not mid_rollout
        return {
            "noise": self.generator.get_state(),
            "tracker": self.tracker.state_dict(),
            "reward_normalizer": None if normalizer is None else normalizer.state_dict(),
            "last_obs": None if self._last is None else self._obs[self._last].clone(),
            "memory": self._memory,
            "start": None if self._last is None else self._start[self._last].clone(),
            "envs": self.envs.state_dict() if restorable and isinstance(self.envs, Restorable) else None,
        }

    def state_shape(self) -> Shape:
        return collector_shape(self)

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Returns the envs whose open episode could not be restored; they stand at a fresh one."""
        self.generator.set_state(state["noise"])
        self.tracker.load_state_dict(state["tracker"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        if state["last_obs"] is None:
            return []
        if state["envs"] is None or not isinstance(self.envs, Restorable):
            return list(range(self.envs.num_envs))  # `_begin` will reset them
        last_obs = state["last_obs"].numpy()
        if self._memory is not None:
            self._memory = state["memory"].to(self.device)
        self._start[0] = state["start"]
        lost = self.envs.load_state_dict(state["envs"], last_obs)
        self._last = 0
        self._obs[0] = state["last_obs"]
        for index in lost:
            self._obs[0, index] = torch.from_numpy(np.asarray(self.envs.observations[index]))
            self._start[0, index] = True
            self.tracker.forget(index)
            if self.reward_normalizer is not None:
                self.reward_normalizer.running[index] = 0.0
        return lost

    def _begin(self, obs: Array) -> None:
        self._final, self._final_memory = [], []
        # After whole episodes our own envs stand at a fresh start, but a vector env has run on.
        ran_on = self.episodes_per_env is not None and not self.envs.exact_seeds
        if self._last is not None and not self.reset_each_rollout and not ran_on:
            obs[0], self._start[0] = obs[self._last], self._start[self._last]
            return
        obs[0] = self.envs.reset()
        self._start[0] = True
        self.tracker.cut(np.zeros(self.envs.num_envs, np.bool_))
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()

    def _end_open_episodes(self, used: int, memory: Tensor | None) -> None:
        """The horizon is the episode's end: open episodes are truncated at the last step and bootstrapped there."""
        last = used - 1
        open_ = (self._valid[last] & ~self._terminated[last] & ~self._truncated[last]).numpy()
        for index in np.flatnonzero(open_):
            self._truncated[last, int(index)] = True
            self._final.append((last * self.envs.num_envs + int(index), self._obs[used, int(index)].numpy().copy()))
            if memory is not None:
                self._final_memory.append(memory[int(index)])
        # The episode that an env began the rollout with is whole; one that began later was perhaps cut short, and
        # counting it only when it was not would prefer short ones.
        self.tracker.cut(open_ & (self.tracker.length == used))
        self.tracker.keep_first()

    def _finish(self, used: int, remaining: float) -> Rollout:
        """Without gradients."""
        self._last = used
        terminated, truncated, valid = self._terminated[:used], self._truncated[:used], self._valid[:used]
        scaled = scale_rewards(
            self._reward[:used],
            (terminated.numpy(), truncated.numpy()),
            valid.numpy(),
            self.reward_scale,
            self.sign_rewards,
            self.reward_normalizer,
            self.compiled,
        )
        device, policy = self.device, self.policy
        obs = self._obs[: used + 1].to(device)
        params, action = self._params[:used].to(device), self._action[:used].to(device)
        context = final_memory = None
        if self._memory is not None:
            context = Context(self._start[: used + 1].to(device, copy=True), self._memory)
            final_memory = torch.stack(self._final_memory) if self._final_memory else self._memory[:0]
        inputs = policy.normalize(obs)
        index, final_inputs = self._finals(inputs)
        rollout = Rollout(
            obs=obs,
            inputs=inputs,
            action=action,
            dist_params=params,
            log_prob=self._log_prob(params, action),
            reward=torch.from_numpy(scaled).to(device, torch.float32),
            terminated=terminated.to(device),
            truncated=truncated.to(device),
            valid=valid.to(device),
            value=params.new_empty(0),
            next_value=params.new_empty(0),
            final_index=index,
            final_inputs=final_inputs,
            remaining=remaining,
            context=context,
            final_memory=final_memory,
            compiled=self.compiled,
        )
        return fill_values(rollout, policy, self._value)

    def _finals(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Where episodes were truncated (t·N + n), and the normalised observation there."""
        if not self._final:  # most rollouts have none, and short ones are made of such small costs
            return torch.empty(0, dtype=torch.int64, device=self.device), inputs[0, :0]
        index, obs = zip(*self._final, strict=True)
        final = torch.from_numpy(np.stack(obs)).to(self.device, self._obs.dtype)
        return torch.tensor(index, dtype=torch.int64, device=self.device), self.policy.normalize(final)


def in_order(items: list[Item], keys: Sequence[Any]) -> list[Item]:
    """`items` (all, or none) in the order of their keys."""
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


def past_limit(limit: int) -> str:
    return f"an episode ran past the env's own limit of {limit} steps; check its TimeLimit"
