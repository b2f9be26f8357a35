"""The training loop: collect → estimate → update, with everything around it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from surefoot.analysis.watch import Watch
from surefoot.engine.group import ALONE, local_device
from surefoot.engine.registry import choose_engine
from surefoot.engine.timing import Deadline, PhaseTimer
from surefoot.engine.torch.modes import own_modes
from surefoot.engine.torch_threads import torch_threads
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.forks import Original
from surefoot.envs.seeds import derive_seed
from surefoot.envs.tensor_envs import device_of
from surefoot.runs.directory import LOGS
from surefoot.schema import Number, Optional, Record, Shape, Whole
from surefoot.training.build.checks import check_memory, check_spaces, facts_of, plan_of, rollout_length
from surefoot.training.build.engines import Engines
from surefoot.training.build.envs import build_envs, close_envs
from surefoot.training.build.footprint import num_parameters
from surefoot.training.build.parts import (
    check_precision,
    choose_device,
    collector_options,
    initial_policy,
    learner_options,
)
from surefoot.training.config.together import with_minibatches
from surefoot.training.evaluation.agent import Agent
from surefoot.training.loop.agreement import agree, part
from surefoot.training.loop.ahead import Ahead
from surefoot.training.loop.due import evaluate_log_save
from surefoot.training.loop.global_generators import capture_globals, globals_shape
from surefoot.training.loop.iteration import iterate
from surefoot.training.loop.journal import Journal
from surefoot.training.loop.out_of_space import SpaceWatch
from surefoot.training.loop.saving import Saving
from surefoot.training.loop.selection import Selection
from surefoot.training.loop.several import take_several, turn_over
from surefoot.training.loop.target import Target
from surefoot.training.loop.turns import held, with_pauses

if TYPE_CHECKING:
    from surefoot.engine.group import Group
    from surefoot.policies.user_encoder import EncoderClass
    from surefoot.runs import RunDirectory
    from surefoot.training.callbacks import Callback
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.loop.trainer_state import TrainerState
    from surefoot.types import GymEnv, GymVectorEnv, Rollout


class Trainer:
    """One run. Build it, `train()`, then read `step`, `policy`, `recent_return`."""

    def __init__(
        self,
        config: TrainConfig,
        seed: int,
        run: RunDirectory | None = None,
        *,
        envs: GymVectorEnv | None = None,
        factory: Callable[..., GymEnv] | None = None,
        callbacks: Sequence[Callback] = (),
        encoder: EncoderClass | None = None,
        group: Group = ALONE,
        own_process: bool = False,
    ) -> None:
        """`encoder`: the class that `config.policy.encoder` names, if it is a user's own.

        `group`: the processes of this run. Each has its envs and the same policy, and only the first has a `run`.
        `own_process`: nothing else in this process uses the global generators.
        """
        self.group, self.own_process, self.globals = group, own_process, capture_globals
        self.deadline = Deadline(config.run.max_time)  # includes the start-up of the envs
        self.original = Original()
        self.config, self.seed, self.run, self.callbacks = config, seed, run, list(callbacks)
        self.saving = Saving(config.run.checkpoint_every, config.run.keep_checkpoints)
        self.troubles: dict[str, str] = {}  # problems that the run currently works around
        self.algorithm = config.new_algorithm()
        with self.original:
            self.envs = build_envs(config, seed, self.algorithm, envs, factory, self.warn, group)
        try:
            # The initial weights must not depend on the number of threads.
            with torch_threads(1), own_modes(gradients=True):
                self._build(encoder)
        except BaseException:
            self.envs.close()
            raise
        self.step, self.journal = 0, Journal(config.run.log_interval, config.run.log_info)
        self.selection, self.target = Selection(config.run, seed), Target(config.run, seed)
        self.advice = Watch(facts_of(config, self.envs))
        self.watch = SpaceWatch(self.envs.layout, self.device, trusted=isinstance(self.envs, DeviceEnvs))
        self.rollout: Rollout | None = None  # the one being learned from
        self.errands: list[Callable[[], object]] = []  # work for the host while a GPU learns
        self.stop_reason: str | None = None
        self.suspended = False
        self.request: tuple[str, bool] | None = None  # why this process wants to stop, and whether to be resumed
        self.free = group.size == 1  # to decide on its own; several processes stop together
        self.elsewhere = 0  # of its steps: those trained before this run, by another library
        self.seconds = 0.0  # training time, from the first env step to the last update

    def _build(self, encoder: EncoderClass | None) -> None:
        config, seed, algorithm, envs, group = self.config, self.seed, self.algorithm, self.envs, self.group
        check_spaces(config, envs)
        length = rollout_length(config, algorithm, envs)
        self.config = config = with_minibatches(config, envs.num_envs * group.size, length)
        plan, wanted, home = plan_of(config, algorithm, envs, length), config.run.device, device_of(envs)
        device, _ = choose_device(wanted, num_parameters(plan), home)
        self.footprint = check_memory(plan, device, on_host=home is None)
        spaces, masked = (envs.observation_space, envs.action_space), bool(envs.layout.mask_size)
        policy = initial_policy(
            *spaces, config.policy, seed, critic=algorithm.uses_critic, masked=masked, encoder=encoder
        )
        size = sum(p.numel() for p in policy.parameters())
        self.device, self.device_reason = local_device(*choose_device(wanted, size, home))
        check_precision(config.run.precision, self.device)
        self.policy, self.timer = policy.to(self.device), PhaseTimer()
        engine, reason = choose_engine(config.engine, self.policy, algorithm, envs, config.engines_before)
        self.learner = engine.learner(
            self.policy, algorithm, learner_options(config, seed, self.device, envs.num_envs, length, group)
        )
        self.threads = self.learner.threads
        self.engines = Engines(engine, self.learner, reason, algorithm, config.algo_name)
        if self.engines.acts_in_pytorch:  # its results depend on the thread count, so the run records it
            self.config = config = replace(config, run=replace(config.run, threads=self.threads.number))
        options = collector_options(config, seed, self.device, algorithm, envs.num_envs, length, self.timer, group)
        self.collector = engine.collector(envs, self.learner.actor, options)
        whole = engine.iterations(self.collector, self.learner, algorithm)
        self.ahead = None if whole is None else Ahead(whole)

    def attach(
        self,
        run: RunDirectory | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        evaluation_env: MakeEnv | None = None,
    ) -> None:
        """Before `train()`: where to write, whom to tell, and where to evaluate. All of these need a built trainer."""
        self.run, self.callbacks = run, list(callbacks)
        self.selection.make = self.target.make = evaluation_env

    def begin_at(self, step: int) -> None:
        """Count from this step: the policy was trained up to it elsewhere."""
        self.step, self.elsewhere, self.saving.behind = step, step, True

    @property
    def engine(self) -> str:
        """native or torch; mixed if one acts and the other learns."""
        return self.engines.name

    def stop(self, reason: str) -> None:
        """End the run after the current update."""
        self._request(reason, suspend=False)

    def suspend(self, reason: str) -> None:
        """Stop after the current update, to be resumed: no final row, which an uninterrupted run would not have."""
        self._request(reason, suspend=True)

    def end(self, reason: str, *, suspend: bool = False) -> None:
        """Stop at this point of the loop, unless it was decided before. All processes of the run must call it here."""
        if self.stop_reason is None:
            self.stop_reason, self.suspended = reason, suspend

    def _request(self, reason: str, *, suspend: bool) -> None:
        self.request = reason, suspend
        if self.free:
            self.stop_reason, self.suspended = self.request

    @property
    def saved_step(self) -> int:
        """Step of the last checkpoint; -1 if there is none yet."""
        return self.saving.saved_step

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
        with self.held():
            for _ in self._turns():
                pass

    def held(self) -> AbstractContextManager[None]:
        """PyTorch's settings while it trains. They are the process's: a run that pauses must not hold them."""
        return held(self.threads.number if self.engines.acts_in_pytorch else 1, self.config.run.precision)

    def turns(self) -> Generator[None]:
        """`train` with a pause before each iteration, in which an engine may begin those of several runs."""
        return with_pauses(self._turns(), self.held)

    def _turns(self) -> Generator[None]:
        with ExitStack() as leaving:
            leaving.callback(close_envs, self.envs, self.warn)
            for callback in reversed(self.callbacks):  # every callback gets on_end, even if another one raises
                leaving.callback(callback.on_end, self)
            for callback in self.callbacks:
                callback.on_start(self)
            leaving.push(self.original)  # before any on_end
            leaving.callback(self.settle)
            leaving.callback(self.run_errands)
            yield from self._loop()

    def _loop(self) -> Generator[None]:
        start = perf_counter() - self.seconds
        while True:  # handle pending work first: a resumed run may start here
            agree(self)
            evaluate_log_save(self)
            if self.over:
                break
            yield
            while not take_several(self, start) and self._iterate(start):
                pass
        self.run_errands()
        self.saving.settle(self)
        if self.group.agree(self.saving.behind):  # a signal arrived after the last save
            self.save()
        part(self)
        self.seconds = perf_counter() - start

    def _iterate(self, start: float) -> bool:  # whether another one follows at once
        steps, episodes, metrics = iterate(self)
        if not steps:
            return False
        self.step += steps
        self.journal.add(metrics, episodes)
        self.saving.behind, self.seconds = True, perf_counter() - start
        for callback in self.callbacks:
            callback.on_update(self, metrics)
        turn_over(self)
        return self.ahead is not None and self.ahead.more and not self.stopped

    def settle(self) -> None:
        """Take back what was begun ahead: the policy and all else are as after the last update."""
        if self.ahead is not None:
            self.ahead.settle()

    def abandon(self) -> bool:
        """Whether to abort an evaluation or a video."""
        if not self.free:  # all processes evaluate, and all must do the same
            return False
        if self.deadline.near and not self.suspended:
            self.suspend("max_time")
        return self.suspended

    @property
    def budget(self) -> int:
        """The step budget, which is also the horizon of all schedules. A resume may change it."""
        return self.config.run.total_steps

    @property
    def remaining(self) -> float:
        """The fraction of the budget that is still ahead, for schedules."""
        return self.remaining_at(self.step)

    def remaining_at(self, step: int) -> float:
        return max(0.0, 1.0 - step / self.budget)

    @property
    def spent(self) -> bool:
        """Whether the next rollout would exceed the step budget."""
        return self.spent_at(self.step)

    def spent_at(self, step: int) -> bool:
        return step + self.collector.most_steps * self.group.size > self.budget

    @property
    def over(self) -> bool:
        """Whether the budget is spent or a stop was requested."""
        return self.spent or self.stop_reason is not None

    @property
    def stopped(self) -> bool:
        """Whether the run was stopped for good, not to be resumed."""
        return self.stop_reason is not None and not self.suspended

    def run_errands(self) -> None:
        """Do what waits for a time in which the host has nothing else to do. If one fails, the others wait on."""
        while self.errands:
            self.errands.pop(0)()

    @property
    def steps_per_second(self) -> float:
        return (self.step - self.elsewhere) / self.seconds if self.seconds else 0.0

    def save(self, *, best: bool = False, mid_rollout: bool = False, wait: bool = True) -> bool:
        """Write a checkpoint of the complete run. If the disk refuses it, the run continues with a warning.

        `best`: it is the best so far by evaluation. `mid_rollout`: open episodes cannot be restored. Without `wait`, it
        is written while training continues.
        """
        self.settle()
        return self.saving.save(self, best=best, mid_rollout=mid_rollout, wait=wait)

    def follow(self) -> bool:
        """Follow a renamed run directory; True if it was renamed. GoneError if it was deleted."""
        if self.run is None or not self.run.follow():
            return False
        self.warn(f"the run directory is now {self.run.path}; the run continues there")
        return True

    def trouble(self, what: str, message: str) -> None:
        """Report a problem once, until it has been resolved and occurs again."""
        known, self.troubles[what] = what in self.troubles, message
        if not known:
            self.warn(message)

    def recovered(self, what: str, step: int | None = None) -> None:
        if self.troubles.pop(what, None) is not None:
            self.warn(f"{what} written again, at step {self.step if step is None else step:,}")

    def advise(self, name: str, message: str) -> None:
        """Give a warning once per run, even if it is resumed."""
        for said in self.advice.once(name, self.step, message):
            self.warn(said)

    def warn(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_warning(self, message)

    def state_dict(self, *, mid_rollout: bool = False) -> TrainerState:
        """Everything that the rest of the run depends on, apart from the policy's own tensors."""
        self.run_errands()  # a row may wait to be written
        self.settle()
        return {
            "step": self.step,
            "elsewhere": self.elsewhere,
            "seconds": self.seconds,
            "logs": self.run.log_state() if self.run is not None else {},
            "algorithm": dict(self.algorithm.state),
            "learner": self.learner.state_dict(),
            "collector": self.collector.state_dict(mid_rollout=mid_rollout),
            "journal": self.journal.state_dict(),
            "selection": self.selection.state_dict(),
            "target": self.target.state_dict(),
            "advice": self.advice.state_dict(),
            "globals": self.globals() if self.own_process else None,
        }

    def state_shape(self) -> Shape:
        """The shape that such a state must have for this run."""
        return Record(
            step=Whole(),
            elsewhere=Optional(Whole(), later=True),
            seconds=Number(low=0.0),
            logs=LOGS,
            algorithm=Record({name: Number() for name in self.algorithm.state}),
            learner=self.learner.state_shape(),
            collector=self.collector.state_shape(),
            journal=self.journal.state_shape(),
            selection=self.selection.state_shape(),
            target=self.target.state_shape(),
            globals=Optional(globals_shape()),
            advice=Optional(self.advice.state_shape(), later=True),
        )

    def load_state_dict(self, state: TrainerState) -> list[int]:
        """Continue from this state; returns the envs whose open episode could not be restored."""
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self.elsewhere = int(state.get("elsewhere") or 0)  # not in runs of 0.1.0
        self.saving.resumed(self.step)
        self.algorithm.state.update(state["algorithm"])
        self.learner.load_state_dict(state["learner"])
        self.journal.load_state_dict(state["journal"])
        self.selection.load_state_dict(state["selection"])
        self.target.load_state_dict(state["target"])
        if (advice := state.get("advice")) is not None:  # not in runs of 0.1.0
            self.advice.load_state_dict(advice)
        return self.collector.load_state_dict(state["collector"])

    @property
    def agent(self) -> Agent:
        """The current policy, ready to act."""
        self.settle()
        return Agent(self.policy, derive_seed(self.seed, "agent"))
