"""The training loop: collect → estimate → update, with everything around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.algorithms import Algorithm, get_algorithm
from surefoot.engine.collect import Collector, valid_observations
from surefoot.engine.collect_tensors import TensorCollector
from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.fast import choose_engine, compile_parts
from surefoot.engine.native import NativeCollector, NativeLearner
from surefoot.engine.optimize import Learner
from surefoot.engine.precision import full_precision
from surefoot.engine.timing import Deadline, PhaseTimer
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.native_envs import NativeEnvs, serves_natively
from surefoot.envs.rewards import RewardNormalizer
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.envs.workers import WorkerEnvs
from surefoot.errors import UsageError
from surefoot.kernels.classic import classic_library
from surefoot.training.agent import Agent
from surefoot.training.build import (
    check_memory,
    check_policy,
    check_spaces,
    choose_device,
    envs_by_prefix,
    initial_policy,
    ready_envs,
    rollout_length,
)
from surefoot.training.config import TrainConfig, check_together
from surefoot.training.evaluate import Abandoned, torch_threads
from surefoot.training.generators import capture_globals
from surefoot.training.journal import Journal
from surefoot.training.selection import Selection, as_row
from surefoot.training.state import save_checkpoint, seeded
from surefoot.training.target import Target
from surefoot.types import weighted_mean

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.runs import RunDirectory
    from surefoot.training.callbacks import Callback
    from surefoot.types import Envs, Rollout

CHECKPOINT_SECONDS = 60.0


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
        encoder: EncoderClass | None = None,
    ) -> None:
        """`encoder`: the class that `config.policy.encoder` names, where that is none of ours."""
        self.deadline = Deadline(config.run.max_time)  # the envs' start-up counts
        self.config, self.seed, self.run, self.callbacks = config, seed, run, list(callbacks)
        self.budget = budget or config.run.total_steps  # a resumed run may get more; its schedules keep their horizon
        self.saved_step = -1  # of the last checkpoint; none yet
        self._unsaved = False  # something has happened since
        self._tried_step, self._tried_at = 0, perf_counter()  # when a checkpoint was last attempted
        self.troubles: dict[str, str] = {}  # what does not work at the moment, though the run goes on
        self.algorithm: Algorithm = get_algorithm(config.run.algo)(config.algorithm)
        self.envs = self._build_envs(envs, factory)
        try:
            with torch_threads(1):  # the first weights must not depend on how many there are
                self._build(encoder)
        except BaseException:
            self.envs.close()
            raise
        self.step = 0
        self.journal = Journal(config.run.log_interval, config.run.log_info)
        self.selection, self.target = Selection(config.run, seed), Target(config.run, seed)
        self.rollout: Rollout | None = None  # what is being learned from
        self.own_process = False  # nobody else draws from the global generators
        self.stop_reason: str | None = None
        self.suspended = False
        self.seconds = 0.0  # of training: from the first env step to the last update

    def _build_envs(self, envs: Any, factory: Any) -> Envs:
        if envs is not None:
            check_together(self.config, envs.num_envs)
            return ready_envs(envs, self.seed)
        config, num_envs = self.config.env, self.config.algorithm.num_envs
        check_memory(self.config.algorithm.rollout_length, num_envs)
        if factory is None and (own := envs_by_prefix(self.config, self.seed)) is not None:
            return own
        if not config.num_workers:
            if self.config.run.engine != "torch" and serves_natively(config, factory):
                return NativeEnvs(config, num_envs, self.seed, classic_library())
            return GymEnvs(lambda: make_env(config, factory), num_envs, self.seed)
        if config.restart_workers and self.algorithm.episodes_per_env is not None:
            raise UsageError(
                f"restart_workers cuts episodes short, but {self.config.run.algo} learns from whole ones; drop it"
            )
        return WorkerEnvs(
            config,
            num_envs,
            self.seed,
            config.num_workers,
            timeout=config.env_timeout,
            restarts=config.restart_workers,
            factory=factory,
            notice=self.warn,
        )

    def _build(self, encoder: EncoderClass | None) -> None:
        config, algorithm = self.config, self.algorithm
        check_spaces(config, self.envs)
        check_policy(config.policy)
        length = rollout_length(config, algorithm, self.envs)
        policy = initial_policy(
            self.envs.observation_space,
            self.envs.action_space,
            config.policy,
            self.seed,
            critic=algorithm.uses_critic,
            masked=bool(self.envs.layout.mask_size),
            encoder=encoder,
        )
        self.device, self.device_reason = choose_device(config.run.device, policy, getattr(self.envs, "device", None))
        self.policy = policy.to(self.device)
        tensors = isinstance(self.envs, TensorEnvs)
        native, self.engine_reason = choose_engine(config.run.engine, self.policy, tensors=tensors)
        self.engine = "native" if native else "torch"
        build: Any = Learner
        if native:
            threads = None if config.run.threads == "auto" else config.run.threads
            build = partial(NativeLearner, threads=threads, samples=self._minibatch(length))
        self.learner: Learner = build(
            self.policy,
            config.algorithm,
            seeded(derive_seed(self.seed, "shuffle")),
            train_actor=algorithm.train_actor,
            critic_learning_rate=getattr(config.algorithm, "critic_learning_rate", None),
            adaptive_kl=getattr(config.algorithm, "adaptive_kl", None),
        )
        if not native and config.run.engine == "auto" and not tensors:
            compiled = compile_parts(self.policy, self.learner.flat, config.run.torch_threads)
            self.engine_reason += f"; {compiled}" if compiled else ""
        normalizer = None
        if config.env.normalize_rewards:
            normalizer = RewardNormalizer(self.envs.num_envs, config.algorithm.gamma)
        self.timer = PhaseTimer()
        numbers = int(np.prod(self.policy.layout.shape)) + self.policy.actions.num_params
        if self.policy.sde:
            numbers += int(np.prod(self.policy.matrix_shape)) // (config.policy.sde_resample or length)
        check_memory(length * (algorithm.episodes_per_env or 1), self.envs.num_envs, numbers)
        collector: Any = TensorCollector if tensors else Collector
        if isinstance(self.learner, NativeLearner):
            collector = partial(NativeCollector, learner=self.learner)
        self.collector: Collector | TensorCollector = collector(
            self.envs,
            self.policy,
            length,
            seeded(derive_seed(self.seed, "actions")),
            episodes_per_env=algorithm.episodes_per_env,
            reset_each_rollout=config.algorithm.reset_each_rollout,
            reward_scale=config.env.reward_scale,
            sign_rewards=config.env.sign_rewards,
            reward_normalizer=normalizer,
            tracker=EpisodeTracker(self.envs.num_envs, config.run.log_info),
            timer=self.timer,
        )

    def _minibatch(self, length: int) -> int:
        """Samples of a gradient step, about."""
        config = self.config.algorithm
        parts: int = getattr(config, "num_minibatches", 0) or getattr(config, "value_minibatches", 1)
        return max(1, length * self.envs.num_envs // parts)

    def stop(self, reason: str) -> None:
        """End the run after the update in progress."""
        self.stop_reason = reason

    def suspend(self, reason: str) -> None:
        """Leave after the update in progress, to be resumed: no last row, which an uninterrupted run would not have."""
        self.stop_reason, self.suspended = reason, True

    @property
    def threads(self) -> str:
        """Of the learner, in words."""
        count = self.learner.net.threads if isinstance(self.learner, NativeLearner) else self.config.run.torch_threads
        return f"{count} thread{'s' if count > 1 else ''}"

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
        threads = 1 if self.engine == "native" else self.config.run.torch_threads
        with torch_threads(threads), full_precision(), ExitStack() as leaving:
            leaving.callback(self.envs.close)
            for callback in reversed(self.callbacks):  # each is told of the end, also when another one raises
                leaving.callback(callback.on_end, self)
            for callback in self.callbacks:
                callback.on_start(self)
            self._loop()

    def _loop(self) -> None:
        horizon = self.config.run.total_steps
        start = perf_counter() - self.seconds
        while True:  # the second half first: a resumed run may have been stopped between the two
            self._evaluate_log_save()
            if self.over:
                break
            remaining = max(0.0, 1.0 - self.step / horizon)
            rollout = self.collector.collect(remaining)
            steps = rollout.num_steps
            if not steps:  # nothing but resets (a vector env, one step): there is nothing to learn from
                continue
            for callback in self.callbacks:
                callback.on_rollout(self, rollout)
            self.rollout = rollout
            with self.timer.phase("learn"):
                metrics = self._learn(rollout, remaining)
            self.rollout = None
            self.step += steps
            self.journal.add(metrics, self.collector.tracker.take())
            self._unsaved = True
            self.seconds = perf_counter() - start
            for callback in self.callbacks:
                callback.on_update(self, metrics)
            self.deadline.turn()
            if self.deadline.near:
                self.suspend("max_time")
        if self._unsaved:  # a signal came between the last save and the look at it
            self.save()
        self.seconds = perf_counter() - start

    def _evaluate_log_save(self) -> None:
        """What may be due after an update. A suspended run leaves to its successor whatever is not done yet."""
        before, found = self.selection.best, {}
        if not self._try_target():
            if self._unsaved:
                self.save()
            return
        if self.selection.due(self.step, last=self.spent or self._stopped):
            with self.timer.phase("eval"):
                found = self._evaluate()
            if not found:
                if self._unsaved:
                    self.save()
                return
        if self.journal.open and (found or self.journal.due(self.step) or self.spent or self._stopped):
            with self.timer.phase("log"):
                self._log(found)
            self._unsaved = True
        improved = self.selection.best != before
        if improved or (self._unsaved and (self.over or self._checkpoint_due())):
            with self.timer.phase("save"):
                if not self.save(best=improved) and improved:
                    self.selection.best = before  # it is not on the disk

    def _try_target(self) -> bool:
        """Stops the run where its target return is reached. False if somebody asks to stop before that is known."""
        if self.target.due(self.step, self.recent) and not self.over:  # at the end, the final evaluation tells
            with self.timer.phase("eval"):
                try:
                    self.target.run(self.agent, self.step, self.abandon)
                except Abandoned:
                    return False
            self._unsaved = True
        if self.target.found is not None and self.stop_reason is None:
            self.stop("target_return")
        return True

    def _evaluate(self) -> dict[str, float]:
        """Nothing, if somebody asks to stop before it is done."""
        try:
            evaluation = self.selection.run(self.agent, self.step, self.abandon)
        except Abandoned:
            return {}
        for callback in self.callbacks:
            callback.on_evaluation(self, evaluation)
        return as_row(evaluation)

    def abandon(self) -> bool:
        """Whether to leave an evaluation or a video in the middle of it."""
        if self.deadline.near and not self.suspended:
            self.suspend("max_time")
        return self.suspended

    def _checkpoint_due(self) -> bool:
        """By steps if asked for, else by the clock: when a checkpoint is written changes nothing else in the run."""
        every = self.config.run.checkpoint_every
        if every is None:
            return perf_counter() - self._tried_at >= CHECKPOINT_SECONDS
        return self.step - self._tried_step >= every

    @property
    def spent(self) -> bool:
        """The next rollout would exceed the step budget."""
        return self.step + self.collector.most_steps > self.budget

    @property
    def over(self) -> bool:
        """The budget is spent, or somebody asked to stop."""
        return self.spent or self.stop_reason is not None

    @property
    def _stopped(self) -> bool:
        """For good, not to be resumed."""
        return self.stop_reason is not None and not self.suspended

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

    def _log(self, found: dict[str, float]) -> None:
        row = {**self.journal.row(self.step), **found}
        timing = {"seconds": self.seconds, "steps_per_second": self.steps_per_second}
        timing |= {f"seconds_{name}": seconds for name, seconds in self.timer.seconds.items()}
        for callback in self.callbacks:
            callback.on_log(self, row, timing)

    @property
    def steps_per_second(self) -> float:
        return self.step / self.seconds if self.seconds else 0.0

    def save(self, *, best: bool = False, mid_rollout: bool = False) -> bool:
        """Write a checkpoint of the whole run as it is now. A disk that refuses it is a trouble, not the end.

        `best`: by evaluation, so far. `mid_rollout`: the open episodes cannot be restored.
        """
        if self.run is None:
            return True
        self._tried_step, self._tried_at = self.step, perf_counter()
        try:
            save_checkpoint(self.run.checkpoints, self, best=best, mid_rollout=mid_rollout)
        except OSError as error:
            stands = f"that of step {self.saved_step:,} stands" if self.saved_step >= 0 else "there is none yet"
            self.trouble(
                "checkpoint",
                f"the checkpoint of step {self.step:,} could not be written to {self.run.checkpoints}: "
                f"{error.strerror}; {stands}. Training goes on and tries again",
            )
            return False
        self.saved_step, self._unsaved = self.step, False
        self.recovered("checkpoint")
        return True

    def trouble(self, what: str, message: str) -> None:
        """Something around the run does not work; said once, until it has worked again."""
        if what not in self.troubles:
            self.troubles[what] = message
            self.warn(message)

    def recovered(self, what: str) -> None:
        if self.troubles.pop(what, None) is not None:
            self.warn(f"{what} written again, at step {self.step:,}")

    def warn(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_warning(self, message)

    def state_dict(self, *, mid_rollout: bool = False) -> dict[str, Any]:
        """Everything that the rest of the run depends on, apart from the policy's own tensors."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "logs": self.run.log_state() if self.run is not None else {},
            "algorithm": dict(self.algorithm.state),
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(mid_rollout=mid_rollout),
            "journal": self.journal.state_dict(),
            "selection": self.selection.state_dict(),
            "target": self.target.state_dict(),
            "globals": capture_globals() if self.own_process else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[int]:
        """Go on from there; returns the envs whose open episode could not be restored."""
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.saved_step = self._tried_step = self.step
        self.algorithm.state.update(state["algorithm"])
        self.learner.load_state_dict(state["learner"])
        self.journal.load_state_dict(state["journal"])
        self.selection.load_state_dict(state["selection"])
        self.target.load_state_dict(state["target"])
        return self.collector.load_state_dict(state["collector"])

    @property
    def agent(self) -> Agent:
        """The policy as it is now, ready to act."""
        return Agent(self.policy, derive_seed(self.seed, "agent"))
