"""The training loop: collect → estimate → update, with everything around it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
from surefoot.training.state import save_checkpoint, seeded

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.engine.episodes import Episode
    from surefoot.runs import RunDirectory
    from surefoot.training.callbacks import Callback
    from surefoot.types import Envs, Rollout

BOX_ONLY = ("std", "log_std_init", "tanh_mean")
LARGE_POLICY = 1_000_000  # parameters from which a GPU beats the cost of reaching it
MAXIMA = ("kl_max", "ratio_error")  # metrics whose extreme matters; the others are averaged between rows


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
    ) -> None:
        self.config, self.seed, self.run, self.callbacks = config, seed, run, list(callbacks)
        self.algorithm: Algorithm = get_algorithm(config.run.algo)(config.algorithm)
        self.envs = self._build_envs(envs, factory)
        try:
            self._build()
        except BaseException:
            self.envs.close()
            raise
        self.step = self.update = self.episodes = 0
        self.stop_reason: str | None = None
        self.recent: list[float] = []  # returns of the last 100 episodes
        self.seconds = 0.0  # of training: from the first env step to the last update
        self._metrics: list[dict[str, float]] = []
        self._finished: list[Episode] = []

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

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last 100 training episodes."""
        return float(np.mean(self.recent)) if self.recent else None

    def train(self) -> None:
        """Run to the step budget, to `stop(...)` or to an error. Closes the envs."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.config.run.threads)
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            self._loop()
        finally:
            torch.set_num_threads(threads)
            for callback in self.callbacks:
                callback.on_end(self)
            self.envs.close()

    def _loop(self) -> None:
        total = self.config.run.total_steps
        largest = self.collector.most_steps
        interval, next_log = self.config.run.log_interval, self.config.run.log_interval
        start = perf_counter()
        while self.step + largest <= total and self.stop_reason is None:
            remaining = 1.0 - self.step / total
            rollout = self.collector.collect(remaining)
            for callback in self.callbacks:
                callback.on_rollout(self, rollout)
            with self.timer.phase("learn"):
                metrics = self._learn(rollout, remaining)
            self.step += rollout.num_steps
            self.update += 1
            self._take_episodes()
            self._metrics.append(metrics)
            for callback in self.callbacks:
                callback.on_update(self, metrics)
            self.seconds = perf_counter() - start
            over = self.step + largest > total or self.stop_reason is not None
            if self.step >= next_log or over:
                next_log = self.step - self.step % interval + interval
                with self.timer.phase("log"):
                    self._log()
        if self.run is not None:
            self.save()
        self.seconds = perf_counter() - start

    def _learn(self, rollout: Rollout, remaining: float) -> dict[str, float]:
        self.learner.set_rates(remaining)
        metrics = self.algorithm.update(self.learner, rollout)
        metrics["learning_rate"] = self.learner.learning_rate
        self.learner.adapt_rate(metrics["kl"])
        clipped = self.policy.actions.clip_fraction(rollout.action)
        if clipped is not None:
            metrics["action_clip_fraction"] = float(clipped[rollout.valid].mean())
        if self.policy.normalizer is not None:
            self.policy.normalizer.merge(valid_observations(rollout))
        return metrics

    def _take_episodes(self) -> None:
        finished = self.collector.tracker.take()
        self.episodes += len(finished)
        self._finished += finished
        self.recent = (self.recent + [episode.ret for episode in finished])[-100:]

    def _log(self) -> None:
        """One row: means over the updates and episodes since the last one."""
        row: dict[str, Any] = {"step": self.step, "update": self.update, "episodes": self.episodes}
        finished = self._finished
        row["episode_return"] = float(np.mean([e.ret for e in finished])) if finished else None
        row["episode_length"] = float(np.mean([e.length for e in finished])) if finished else None
        for key in self.config.run.log_info:
            found = [e.info[key] for e in finished if key in e.info]
            row[f"info/{key}"] = float(np.mean(found)) if found else None
        for name in self._metrics[-1]:
            column = [metrics[name] for metrics in self._metrics if name in metrics]
            row[name] = max(column) if name in MAXIMA else float(np.mean(column))
        timing = {"seconds": self.seconds, "steps_per_second": self.steps_per_second}
        timing |= {f"seconds_{name}": seconds for name, seconds in self.timer.seconds.items()}
        self._metrics, self._finished = [], []
        for callback in self.callbacks:
            callback.on_log(self, row, timing)

    @property
    def steps_per_second(self) -> float:
        return self.step / self.seconds if self.seconds else 0.0

    def save(self) -> None:
        """Write a checkpoint of the policy as it is now."""
        assert self.run is not None
        spaces = (self.envs.observation_space, self.envs.action_space)
        save_checkpoint(
            self.run.checkpoints / str(self.step),
            self.policy,
            spaces,
            self.config.flat(),
            step=self.step,
            seed=self.seed,
        )

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
