"""The training loop: collect → estimate → update, with everything around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from surefoot.algorithms import Algorithm, get_algorithm
from surefoot.engine.collect import Collector, valid_observations
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.optimize import Learner
from surefoot.engine.timing import PhaseTimer
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.rewards import RewardNormalizer
from surefoot.envs.seeds import derive_seed
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.settings import options
from surefoot.training.agent import Agent
from surefoot.training.config import TrainConfig, check_together
from surefoot.training.evaluate import torch_threads
from surefoot.training.journal import Journal
from surefoot.training.state import save_checkpoint, seeded
from surefoot.types import weighted_mean

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.runs import RunDirectory
    from surefoot.training.callbacks import Callback
    from surefoot.types import Envs, Rollout

BOX_ONLY = ("std", "log_std_init", "tanh_mean")
CHECKPOINT_SECONDS = 60.0
LARGE_POLICY = 1_000_000  # parameters from which a GPU beats the cost of reaching it


class Trainer:
    """One run. Build it, `train()`, then read `step`, `policy`, `recent_return`."""

    def __init__(
        self,
        config: TrainConfig,
        seed: int,
        run: RunDirectory | None = None,
        *,
        envs: gym.vector.VectorEnv[Any, Any, Any] | None = None,
        factory: Callable[..., gym.Env[Any, Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        budget: int | None = None,
    ) -> None:
        self.config, self.seed, self.run, self.callbacks = config, seed, run, list(callbacks)
        self.budget = budget or config.run.total_steps  # a resumed run may get more; its schedules keep their horizon
        self.saved_step = -1  # of the last checkpoint; none yet
        self._saved_at = perf_counter()
        self.algorithm: Algorithm = get_algorithm(config.run.algo)(config.algorithm)
        self.envs = self._build_envs(envs, factory)
        try:
            with torch_threads(config.run.threads):  # the first weights, too, must not depend on how many there are
                self._build()
        except BaseException:
            self.envs.close()
            raise
        self.step = 0
        self.journal = Journal(config.run.log_interval, config.run.log_info)
        self.stop_reason: str | None = None
        self.suspended = False
        self.seconds = 0.0  # of training: from the first env step to the last update

    def _build_envs(self, envs: Any, factory: Any) -> Envs:
        if envs is not None:
            check_together(self.config, envs.num_envs)
            return VectorEnvs(envs, self.seed)
        return GymEnvs(lambda: make_env(self.config.env, factory), self.config.algorithm.num_envs, self.seed)

    def _build(self) -> None:
        config, algorithm = self.config, self.algorithm
        self._check_spaces()
        length = self._rollout_length()
        with torch.random.fork_rng():
            torch.manual_seed(derive_seed(self.seed, "init"))
            policy = ActorCritic(
                self.envs.observation_space,
                self.envs.action_space,
                config.policy,
                critic=algorithm.uses_critic,
            )
        self.device, self.device_reason = choose_device(config.run.device, policy)
        self.policy = policy.to(self.device)
        self.learner = Learner(
            self.policy,
            config.algorithm,
            seeded(derive_seed(self.seed, "shuffle")),
            train_actor=algorithm.train_actor,
            critic_learning_rate=getattr(config.algorithm, "critic_learning_rate", None),
            adaptive_kl=getattr(config.algorithm, "adaptive_kl", None),
        )
        normalizer = None
        if config.env.normalize_rewards:
            normalizer = RewardNormalizer(self.envs.num_envs, config.algorithm.gamma)
        self.timer = PhaseTimer()
        check_memory(length * (algorithm.episodes_per_env or 1), self.envs, self.policy)
        self.collector = Collector(
            self.envs,
            self.policy,
            length,
            seeded(derive_seed(self.seed, "actions")),
            episodes_per_env=algorithm.episodes_per_env,
            reset_each_rollout=config.algorithm.reset_each_rollout,
            reward_scale=config.env.reward_scale,
            reward_normalizer=normalizer,
            tracker=EpisodeTracker(self.envs.num_envs, config.run.log_info),
            timer=self.timer,
        )

    def _check_spaces(self) -> None:
        """A setting for continuous actions on a discrete env would be silently inert."""
        if hasattr(self.envs.action_space, "n"):
            for option in options(type(self.config.policy)):
                if option.name in BOX_ONLY and getattr(self.config.policy, option.name) != option.default:
                    raise UsageError(
                        f"{option.name} is for continuous actions, but {self.config.env.env or 'this env'} has "
                        f"{self.envs.action_space}; drop it (the preset may be meant for another env)"
                    )

    def _rollout_length(self) -> int:
        if self.algorithm.episodes_per_env is None:
            return int(self.config.algorithm.rollout_length)
        limit = self.config.env.max_episode_steps or self.envs.time_limit
        if limit is None:
            raise UsageError(
                f"{self.config.run.algo} learns from whole episodes, but the env has no time limit; "
                "set --max-episode-steps"
            )
        most = limit * self.algorithm.episodes_per_env * self.envs.num_envs
        if most > self.config.run.total_steps:
            raise UsageError(
                f"total_steps={self.config.run.total_steps} may not hold one rollout of {self.envs.num_envs} envs "
                f"× {self.algorithm.episodes_per_env} episodes of up to {limit} steps; "
                "raise --total-steps or lower --num-envs"
            )
        return limit

    def stop(self, reason: str) -> None:
        """End the run after the update in progress."""
        self.stop_reason = reason

    def suspend(self, reason: str) -> None:
        """Leave after the update in progress, to be resumed: no last row, which an uninterrupted run would not have."""
        self.stop_reason, self.suspended = reason, True

    @property
    def update(self) -> int:
        return self.journal.updates

    @property
    def episodes(self) -> int:
        return self.journal.episodes

    @property
    def recent(self) -> list[float]:
        """Returns of the last 100 training episodes."""
        return self.journal.recent

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last 100 training episodes."""
        return float(np.mean(self.recent)) if self.recent else None

    def train(self) -> None:
        """Run to the step budget, to `stop(...)` or to an error. Closes the envs."""
        with torch_threads(self.config.run.threads), ExitStack() as leaving:
            leaving.callback(self.envs.close)
            for callback in reversed(self.callbacks):  # each is told of the end, also when another one raises
                leaving.callback(callback.on_end, self)
            for callback in self.callbacks:
                callback.on_start(self)
            self._loop()

    def _loop(self) -> None:
        horizon = self.config.run.total_steps
        start = perf_counter() - self.seconds
        while not self.over:
            remaining = max(0.0, 1.0 - self.step / horizon)
            rollout = self.collector.collect(remaining)
            if not rollout.num_steps:  # nothing but resets (a vector env, one step): there is nothing to learn from
                continue
            for callback in self.callbacks:
                callback.on_rollout(self, rollout)
            with self.timer.phase("learn"):
                metrics = self._learn(rollout, remaining)
            self.step += rollout.num_steps
            self.journal.add(metrics, self.collector.tracker.take())
            for callback in self.callbacks:
                callback.on_update(self, metrics)
            self.seconds = perf_counter() - start
            if self.journal.due(self.step) or self.spent or (self.over and not self.suspended):
                with self.timer.phase("log"):
                    self._log()
            if self.run is not None and (self.over or self._checkpoint_due()):
                with self.timer.phase("save"):
                    self.save()
        self.seconds = perf_counter() - start

    def _checkpoint_due(self) -> bool:
        """By steps if asked for, else by the clock: when a checkpoint is written changes nothing else in the run."""
        every = self.config.run.checkpoint_every
        if every is None:
            return perf_counter() - self._saved_at >= CHECKPOINT_SECONDS
        return self.step - max(self.saved_step, 0) >= every

    @property
    def spent(self) -> bool:
        """The next rollout would exceed the step budget."""
        return self.step + self.collector.most_steps > self.budget

    @property
    def over(self) -> bool:
        """The budget is spent, or somebody asked to stop."""
        return self.spent or self.stop_reason is not None

    def _learn(self, rollout: Rollout, remaining: float) -> dict[str, float]:
        self.learner.set_rates(remaining)
        metrics = self.algorithm.update(self.learner, rollout)
        metrics["learning_rate"] = self.learner.learning_rate
        self.learner.adapt_rate(metrics["kl"])
        clipped = self.policy.actions.clip_fraction(rollout.action)
        if clipped is not None:
            metrics["action_clip_fraction"] = float(weighted_mean(clipped, rollout.valid.float()))
        if self.policy.normalizer is not None:
            self.policy.normalizer.merge(valid_observations(rollout))
        return metrics

    def _log(self) -> None:
        row = self.journal.row(self.step)
        timing = {"seconds": self.seconds, "steps_per_second": self.steps_per_second}
        timing |= {f"seconds_{name}": seconds for name, seconds in self.timer.seconds.items()}
        for callback in self.callbacks:
            callback.on_log(self, row, timing)

    @property
    def steps_per_second(self) -> float:
        return self.step / self.seconds if self.seconds else 0.0

    def save(self, *, mid_rollout: bool = False) -> None:
        """Write a checkpoint of the whole run as it is now; `mid_rollout`: the open episodes cannot be restored."""
        assert self.run is not None
        save_checkpoint(self.run.checkpoints, self, mid_rollout)
        self.saved_step, self._saved_at = self.step, perf_counter()

    def state_dict(self, *, mid_rollout: bool = False) -> dict[str, Any]:
        """Everything that the rest of the run depends on, apart from the policy's own tensors."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "log_sizes": self.run.log_sizes() if self.run is not None else {},
            "algorithm": dict(self.algorithm.state),
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(mid_rollout=mid_rollout),
            "journal": self.journal.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Go on from there; returns the envs whose open episode could not be restored."""
        self.step, self.seconds = state["step"], state["seconds"]
        self.saved_step, self._saved_at = self.step, perf_counter()
        self.algorithm.state.update(state["algorithm"])
        self.learner.load_state_dict(state["learner"])
        self.journal.load_state_dict(state["journal"])
        return self.collector.load_state_dict(state["collector"])

    @property
    def agent(self) -> Agent:
        """The policy as it is now, ready to act."""
        return Agent(self.policy, derive_seed(self.seed, "agent"))


def choose_device(wanted: str, policy: ActorCritic) -> tuple[torch.device, str]:
    """(the device, why)."""
    if wanted == "cpu":
        return torch.device("cpu"), "as asked"
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("device=cuda, but PyTorch sees no CUDA device here; use --device cpu")
        return torch.device("cuda"), "as asked"
    if not torch.cuda.is_available():
        return torch.device("cpu"), "no CUDA device here"
    size = sum(p.numel() for p in policy.parameters())
    if size < LARGE_POLICY:
        return torch.device("cpu"), f"{size:,} parameters are too few to gain from the GPU"
    return torch.device("cuda"), f"{size:,} parameters"


def check_memory(length: int, envs: Envs, policy: ActorCritic) -> None:
    """Refuse rollouts that cannot fit, before they are allocated."""
    per_step = 4 * int(np.prod(policy.obs_shape)) + 4 * policy.actions.num_params + 48
    needed = 3 * length * envs.num_envs * per_step  # stored, normalised, in minibatches
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if available is not None and needed > 0.8 * available:
        raise UsageError(
            f"a rollout of {envs.num_envs} envs × {length} steps needs about {needed / 2**30:.1f} GiB; "
            f"this machine has {available / 2**30:.1f}. Lower --num-envs or --rollout-length"
        )
