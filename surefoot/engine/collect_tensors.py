"""The rollout loop for envs that speak in tensors: nothing is read on the host before the rollout is complete.

A simulator on a GPU and the policy beside it then run ahead of Python; waiting for the device at every step would cost
more than the step. Episode statistics, faults and the truncations whose final observations are needed are looked for
afterwards, once per rollout.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from surefoot.engine.collect import past_limit
from surefoot.engine.collector_state import collector_shape
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.rollouts import fill_values, scale_rewards
from surefoot.engine.timing import PhaseTimer
from surefoot.engine.torch.modes import own_modes
from surefoot.errors import EnvError, NonFiniteError, UsageError
from surefoot.policies.actions.model import torch_dtype
from surefoot.types import Context, Rollout, Step

if TYPE_CHECKING:
    from surefoot.envs.rewards import RewardNormalizer
    from surefoot.envs.tensor_envs import TensorEnvs
    from surefoot.policies.actor_critic import ActorCritic
    from surefoot.schema import Shape
    from surefoot.types import Array, TensorStep

LOOK_EVERY = 32  # steps after which whole-episode collection asks whether all envs are done


class TensorCollector:
    """As `Collector`, with its storage on the policy's device."""

    def __init__(
        self,
        envs: TensorEnvs,
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
        self.length = rollout_length if episodes_per_env is None else (rollout_length + 1) * episodes_per_env
        self.most_steps = rollout_length * (episodes_per_env or 1) * envs.num_envs
        self._send = policy.actions.tensor_sender(envs.device)
        self._allocate(self.length, envs.num_envs)
        self._last: int | None = None  # where the last rollout's final observation stands

    def _allocate(self, length: int, num_envs: int) -> None:
        shape, actions, layout = (length, num_envs), self.policy.actions, self.envs.layout

        def zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=self.device)

        kind = torch_dtype(layout.dtype)
        self._obs = zeros(length + 1, num_envs, *layout.shape, dtype=kind)
        self._action = zeros(*shape, *actions.shape, dtype=actions.dtype)
        self._params = zeros(*shape, actions.num_params)
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        self._reward = zeros(*shape, dtype=exact)  # raw
        flags = (zeros(*shape, dtype=torch.bool) for _ in range(4))
        self._terminated, self._truncated, self._valid, self._ended = flags  # `_ended`: truly, not by a lost life
        self._start = ~zeros(length + 1, num_envs, dtype=torch.bool)
        self._memory = self.policy.initial_memory(num_envs)
        # Which steps are truncations is not known here, so every step keeps what one would need.
        separate = self.envs.separate_final
        self._final = zeros(*shape, *layout.shape, dtype=kind) if separate else None
        self._given = np.zeros(length, np.bool_)  # steps whose final observations the env gave
        self._memories = None
        if separate and self._memory is not None:
            self._memories = zeros(*shape, self._memory.shape[1])
        self._info = {key: zeros(*shape, dtype=exact) for key in self.tracker.info_keys}
        self._info_given = {key: np.zeros(length, np.bool_) for key in self._info}

    def collect(self, remaining: float = 1.0) -> Rollout:
        """One rollout with the policy as it is now."""
        num_envs = self.envs.num_envs
        self._begin()
        wanted = self.episodes_per_env
        with own_modes(gradients=False):
            memory = None if self._memory is None else self._memory.clone()
            episodes = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
            active = None if wanted is None else episodes < wanted
            noise = self.policy.noise(self.length, num_envs, self.generator)
        used = self.length
        for t in range(self.length):
            start = perf_counter()
            with own_modes(gradients=False):
                inputs = self.policy.normalize(self._obs[t])
                begins = None if memory is None else self._start[t]
                params, action, memory = self.policy.act(inputs, noise[t], memory, begins)
                self._params[t], self._action[t] = params, action
                sent = self._send(action.to(self.envs.device))
            acted = perf_counter()
            step = self.envs.step(sent, None if active is None else active.to(self.envs.device))
            stepped = perf_counter()
            with own_modes(gradients=False):  # what an env made with gradients is stored without them
                self._store(t, step, memory)
                if wanted is not None:
                    episodes += self._ended[t] & self._valid[t]
                    active = episodes < wanted
            self.timer.add("act", acted - start + perf_counter() - stepped)
            self.timer.add("env", stepped - acted)
            if active is not None and (t + 1) % LOOK_EVERY == 0 and not bool(active.any()):
                used = t + 1
                break
        if active is not None and bool(active.any()):
            raise EnvError(past_limit(self.rollout_length))
        with self.timer.phase("act"), own_modes(gradients=False):
            rollout = self._finish(used, remaining)
        self._memory = memory
        return rollout

    def _store(self, t: int, step: TensorStep, memory: Tensor | None) -> None:
        self._obs[t + 1], self._reward[t], self._valid[t] = step.obs, step.reward, step.valid
        self._terminated[t], self._truncated[t] = step.terminated, step.truncated
        torch.logical_or(self._terminated[t], self._truncated[t], out=self._ended[t])
        if step.life_lost is not None:
            self._terminated[t] |= step.life_lost.to(self.device)
        self._start[t + 1] = step.first
        if self._final is not None:
            self._given[t] = step.final_obs is not None
            if step.final_obs is not None:
                self._final[t] = step.final_obs
        if self._memories is not None and memory is not None:
            self._memories[t] = memory
        for key, column in self._info.items():
            self._info_given[key][t] = key in step.info
            if key in step.info:
                column[t] = step.info[key]

    def _begin(self) -> None:
        ran_on = self.episodes_per_env is not None  # a vector env steps on after the episodes that were wanted
        if self._last is not None and not self.reset_each_rollout and not ran_on:
            self._obs[0], self._start[0] = self._obs[self._last].clone(), self._start[self._last].clone()
            return
        fresh = self.envs.reset()
        with own_modes(gradients=False):
            self._obs[0] = fresh
            self._start[0] = True
        self.tracker.cut(np.zeros(self.envs.num_envs, np.bool_))
        if self.reward_normalizer is not None:
            self.reward_normalizer.restart()

    def _finish(self, used: int, remaining: float) -> Rollout:
        """The only place where the host reads what happened."""
        read = [x[:used].cpu().numpy() for x in (self._reward, self._terminated, self._truncated, self._valid)]
        if self.episodes_per_env is not None:  # what came after the last episode that was wanted
            used = int(np.flatnonzero(read[3].any(1))[-1]) + 1
        reward, terminated, truncated, valid = (x[:used] for x in read)
        self._last = used
        self._require_given(truncated & ~terminated)
        self._count(used, reward, valid)
        if self.reset_each_rollout:
            open_ = valid[-1] & ~terminated[-1] & ~truncated[-1]
            self._end_open_episodes(used, open_)
            truncated = np.concatenate([truncated[:-1], truncated[-1:] | open_])
        scaled = scale_rewards(
            reward.astype(np.float64),
            (terminated, truncated),
            valid,
            self.reward_scale,
            self.sign_rewards,
            self.reward_normalizer,
        )
        index = np.flatnonzero(truncated & ~terminated) if self._final is not None else np.zeros(0, np.int64)
        rollout = self._rollout(used, remaining, scaled, torch.from_numpy(index).to(self.device))
        self._require_sound(used, rollout)
        return rollout

    def _rollout(self, used: int, remaining: float, scaled: Array, final_index: Tensor) -> Rollout:
        policy, obs, params, action = self.policy, self._obs[: used + 1], self._params[:used], self._action[:used]
        final = obs[:0, 0] if self._final is None else self._final.flatten(0, 1)[final_index]
        context = final_memory = None
        if self._memory is not None:
            context = Context(self._start[: used + 1].clone(), self._memory)
            kept = self._memories
            final_memory = self._memory[:0] if kept is None else kept.flatten(0, 1)[final_index]
        rollout = Rollout(
            obs=obs,
            inputs=policy.normalize(obs),
            action=action,
            dist_params=params,
            log_prob=policy.actions.distribution(params).log_prob(action),
            reward=torch.from_numpy(scaled).to(self.device, torch.float32),
            terminated=self._terminated[:used],
            truncated=self._truncated[:used],
            valid=self._valid[:used],
            value=params.new_empty(0),
            next_value=params.new_empty(0),
            final_index=final_index,
            final_inputs=policy.normalize(final),
            remaining=remaining,
            context=context,
            final_memory=final_memory,
        )
        return fill_values(rollout, policy)

    def _require_given(self, cut: Array) -> None:
        """`cut` `[T, N]`: truncations."""
        missing = cut & ~self._given[: len(cut), None]
        if self._final is not None and missing.any():
            t, index = np.argwhere(missing)[0]
            raise UsageError(
                f"{self.envs.envs} declares SAME_STEP autoreset, but when env {index} was truncated at step {t} of the "
                "rollout info['final_obs'] was not there; without it the value of the episode's end is unknown"
            )

    def _require_sound(self, used: int, rollout: Rollout) -> None:
        """What the adapter of NumPy's envs looks for at every step."""
        self.envs.odd_flags()
        finals, faults = rollout.final_inputs[None], []
        for what, values in (
            ("observation", rollout.obs),
            ("reward", self._reward[:used]),
            ("final observation", finals),
        ):
            if values.is_floating_point() and not bool(values.isfinite().all()):
                t, index = (int(x) for x in (~values.isfinite()).reshape(*values.shape[:2], -1).any(2).nonzero()[0])
                if values is finals:
                    t, index = divmod(int(rollout.final_index[index]), self.envs.num_envs)
                faults.append((t, f"{what} of vector env, index {index} is not finite, at step {t} of the rollout"))
        if faults:  # the first: it has perhaps led to the others
            raise NonFiniteError(min(faults, key=lambda fault: fault[0])[1])
        mask = self.envs.layout.mask
        if mask is not None:
            for part in torch.split(self._obs[:used, :, mask], list(self.envs.masks.sizes), -1):
                if not bool((legal := (part > 0.5).any(-1)).all()):
                    t, index = (int(x) for x in legal.logical_not().nonzero()[0])
                    raise EnvError(
                        f"vector env, index {index}: the action mask leaves no legal action at step {t} of the rollout"
                    )

    def _count(self, used: int, reward: Array, valid: Array) -> None:
        """Returns and lengths of the episodes that ended."""
        ended = self._ended[:used].cpu().numpy()
        columns = {key: column[:used].cpu().numpy() for key, column in self._info.items()}
        nothing = np.zeros(0)
        for t in range(used):
            last = {
                int(index): {key: column[t, index] for key, column in columns.items() if self._info_given[key][t]}
                for index in np.flatnonzero(ended[t])
            }
            self.tracker.add(Step(nothing, reward[t], ended[t], ended[t], valid[t], final_info=last))

    def _end_open_episodes(self, used: int, open_: Array) -> None:
        """As `Collector` does: truncated at the last step and bootstrapped there."""
        last, here = used - 1, torch.from_numpy(open_).to(self.device)
        self._truncated[last] |= here
        if self._final is not None:
            wide = here.reshape(-1, *(1,) * (self._final.dim() - 2))
            self._final[last] = torch.where(wide, self._obs[used], self._final[last])
        self.tracker.cut(open_ & (self.tracker.length == used))
        self.tracker.keep_first()

    def state_dict(self, *, mid_rollout: bool = False) -> dict[str, Any]:
        """As `Collector`'s. The envs themselves cannot be saved."""
        normalizer = self.reward_normalizer
        return {
            "noise": self.generator.get_state(),
            "tracker": self.tracker.state_dict(),
            "reward_normalizer": None if normalizer is None else normalizer.state_dict(),
            "last_obs": None if self._last is None else self._obs[self._last].clone(),
            "memory": self._memory,
            "start": None if self._last is None else self._start[self._last].clone(),
            "envs": None,
        }

    def state_shape(self) -> Shape:
        return collector_shape(self)

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Every env stands at a fresh episode."""
        self.generator.set_state(state["noise"])
        self.tracker.load_state_dict(state["tracker"])
        if self.reward_normalizer is not None:
            self.reward_normalizer.load_state_dict(state["reward_normalizer"])
        return [] if state["last_obs"] is None else list(range(self.envs.num_envs))
