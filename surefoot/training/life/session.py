"""One run in one process: set up, train, save, evaluate, and clean up whatever happens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO, TypeAlias, overload

from surefoot.engine.registry import uses_kernels
from surefoot.envs.backends import backend_of
from surefoot.envs.playing import Abandoned
from surefoot.errors import GoneError, SurefootError, UsageError
from surefoot.kernels import library
from surefoot.runs import locks
from surefoot.runs.directory import shell_path
from surefoot.text import print
from surefoot.training.config.resolve import MEMORY, preset_notes
from surefoot.training.evaluation.evaluate import env_maker, evaluate_agent
from surefoot.training.evaluation.result import Evaluation
from surefoot.training.life.crash import write_crash
from surefoot.training.life.signals import CALM, Interrupted, Signals, complain, signals_handled
from surefoot.training.loop.saving import TRIES_AGAIN
from surefoot.training.reports.episode_log import EpisodeLog
from surefoot.training.reports.loggers import FileLog, OnlyOriginal, TensorBoardLog, VideoLog
from surefoot.training.reports.progress import make_progress
from surefoot.training.reports.streams import unfailing
from surefoot.training.reports.trackers import TrackerLog
from surefoot.user_code import is_from_python

if TYPE_CHECKING:
    from surefoot.envs.make import Factory
    from surefoot.runs import RunDirectory
    from surefoot.runs.directory import Logs
    from surefoot.training.callbacks import Callback
    from surefoot.training.config.resolve import Outline, TrainConfig
    from surefoot.training.evaluation.evaluate import EnvMaker, MakeEnv
    from surefoot.training.reports.progress import Progress
    from surefoot.training.reports.result import Result
    from surefoot.training.trainer import Trainer
    from surefoot.types import GymEnv, GymSpace

Spaces: TypeAlias = "tuple[GymSpace, GymSpace]"  # (observation, action)
HURRY = 0.5  # seconds to wait for a checkpoint being written when a run must stop at once


@dataclass
class Session:
    """A trainer with its directory, evaluation and final messages."""

    trainer: Trainer
    directory: RunDirectory
    evaluation_env: MakeEnv | None = None
    video_env: Callable[[], GymEnv] | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = True
    to_stderr: bool = False
    own_process: bool = False
    resume_flags: str | None = None  # for `surefoot resume`; None: it cannot be resumed from its directory
    filmed: bool = False  # `surefoot video` works on this run
    evaluate: bool = True  # at the end
    unwritten: dict[str, list[str]] | None = None  # rows of metrics that a full disk had refused
    signals: Signals | None = None  # whoever handles them for several runs that take turns in this process

    def run(self) -> Result:
        """Train to the end, evaluate, write the result. However it ends, `status.json` says so."""
        turns = self.turns()
        while True:
            try:
                next(turns)
            except StopIteration as over:
                result: Result = over.value
                return result

    def turns(self) -> Generator[None, None, Result]:
        """`run`; if other runs take turns with it, it pauses before each iteration."""
        trainer, directory = self.trainer, self.directory
        display = make_progress(enabled=self.progress, to_stderr=self.to_stderr)
        logs = directory.open_logs(self.unwritten)
        # The episode log comes first, so that a failing user callback cannot prevent it from writing.
        episodes = EpisodeLog(logs.episodes, trainer.config.run.log_info)
        callbacks = [episodes, *self.callbacks, OnlyOriginal(), *self._loggers(logs), display]
        trainer.attach(directory, callbacks=callbacks, evaluation_env=self.evaluation_env)
        directory.note(greeting(trainer, directory))
        directory.set_status("running", step=trainer.step)
        outcome = "failed"
        try:
            result = yield from self._train_and_evaluate(display)
            outcome = "interrupted" if trainer.suspended else "done"
        except KeyboardInterrupt:
            outcome = "interrupted"
            raise
        finally:
            for callback in trainer.callbacks:
                callback.on_exit(trainer, outcome)
        return result

    @property
    def resume_command(self) -> str | None:
        """The command that continues the run, ready to paste; the directory may have been renamed since the start."""
        if self.resume_flags is None:
            return None
        together = f" --ranks {self.trainer.group.size}" if self.trainer.group.size > 1 else ""
        return f"surefoot resume {shell_path(self.directory.path)}{self.resume_flags}{together}"

    @property
    def next_command(self) -> str | None:
        """The command to suggest when training is done: a video if possible, else an evaluation on new episodes."""
        if self.resume_flags is None:
            return None
        where = shell_path(self.directory.path)
        what = f"video {where} --untrained" if self.filmed else f"eval {where} --stochastic"
        return f"surefoot {what}{self.resume_flags}"

    def _train_and_evaluate(self, display: Progress) -> Generator[None, None, Result]:
        trainer, directory = self.trainer, self.directory
        try:
            with self._signals() as signals:
                if self.signals is None:
                    trainer.train()
                else:
                    yield from trainer.turns()
                warn_if_no_episode_ended(trainer)
                evaluation = None if trainer.suspended else self._evaluate(display)
                trainer.follow()
            if signals.received:
                raise Interrupted(self._resume_message(), 128 + signals.received)
            self._check_saved()
        except KeyboardInterrupt as interrupt:
            if not isinstance(interrupt, Interrupted):  # a second signal, or the update took too long
                interrupt = Interrupted(self._cut_short(), 128 + (signals.received or signal.SIGINT))
            directory.set_status("interrupted", step=trainer.step)
            raise interrupt from None
        except GoneError as gone:
            gone.add_note(f"The run stopped at step {trainer.step:,}. A copy of it elsewhere can be resumed.")
            raise
        except SystemExit as left:
            error = no_way_out(left)
            self._failed(error)
            raise error from left
        except BaseException as error:
            self._failed(error)
            raise
        resume = self.resume_command if trainer.suspended else None
        result = summarize(trainer, directory, evaluation, resume=resume, next_command=resume or self.next_command)
        directory.set_result(result)
        found = evaluation.mean_return if evaluation else None
        state = "interrupted" if trainer.suspended else "done"
        directory.set_status(state, step=trainer.step, eval_return=found, why=trainer.stop_reason)
        return result

    def _signals(self) -> AbstractContextManager[Signals]:
        if self.signals is not None:
            return nullcontext(self.signals)
        trainer, last_words = self.trainer, self._last_words if self.own_process else None
        calm = CALM if trainer.group.size > 1 else 0.0
        return signals_handled(trainer.suspend, trainer.saving.ask, last_words, calm)

    def _loggers(self, logs: Logs) -> list[Callback]:
        trainer, directory, config = self.trainer, self.directory, self.trainer.config.run
        found: list[Callback] = [FileLog(directory, logs), TensorBoardLog(directory, trainer.step)]
        found += [TrackerLog(name, directory) for name in config.trackers]
        if config.video_every is not None and self.video_env is not None:
            found.append(VideoLog(directory, self.video_env, config.video_every, trainer.step))
        return found

    def _evaluate(self, display: Progress) -> Evaluation | None:
        trainer, config = self.trainer, self.trainer.config.run
        if self.evaluation_env is None or not config.eval_episodes or not self.evaluate:
            return None
        with display.evaluating(config.eval_episodes):
            try:
                evaluation = evaluate_agent(
                    trainer.agent,
                    self.evaluation_env,
                    episodes=config.eval_episodes,
                    seed=trainer.seed,
                    max_steps=config.eval_max_steps,
                    abandon=trainer.abandon,
                )
            except Abandoned:  # the training is saved; a resumed run evaluates again
                return None
        for callback in trainer.callbacks:
            callback.on_evaluation(trainer, evaluation)
        return evaluation

    def _check_saved(self) -> None:
        """A run that ends without its last checkpoint must not look successful."""
        if trouble := self.trainer.troubles.get("checkpoint"):
            raise SurefootError(f"the end of the run is not saved: {trouble.removesuffix(TRIES_AGAIN)}")

    def _failed(self, error: BaseException) -> None:
        self.trainer.original.end_copies(error)
        # Save this first: the disk may have room for nothing else.
        self.directory.set_status("failed", step=self.trainer.step, error=f"{type(error).__name__}: {error}")
        self.directory.note(f"failed at step {self.trainer.step}: {type(error).__name__}: {error}")
        self._rescue(error)

    def _rescue(self, error: BaseException) -> None:
        """Save after an error: the weights are intact, but open episodes are not."""
        trainer = self.trainer
        with suppress(GoneError):  # nowhere to write, and the original error matters more
            trainer.saving.settle(trainer)
            if trainer.step and trainer.saved_step != trainer.step and trainer.group.size == 1:
                trainer.save(mid_rollout=True)
            trainer.follow()
            where = write_crash(self.directory, trainer, error)
            if where is not None:
                error.add_note(f"what happened is in {where}")
            if self.resume_command is not None and trainer.saved_step >= 0:
                error.add_note(f"To continue from step {trainer.saved_step:,}:\n{self.resume_command}")

    def _cut_short(self) -> str:
        """In the middle of a rollout no exact state can be saved; the last checkpoint resumes exactly."""
        trainer = self.trainer
        with suppress(GoneError):
            trainer.saving.settle(trainer, HURRY)
            alone = trainer.group.size == 1  # others would have to take part
            if trainer.saved_step < 0 and trainer.step and not trainer.saving.under_way and alone:
                trainer.save(mid_rollout=True)
        return self._resume_message()

    def _resume_message(self) -> str:
        trainer, where = self.trainer, self.directory.path
        step = f"at step {trainer.step:,}; "
        if trainer.saved_step < 0:
            step += "nothing is saved yet, it would start from the beginning"
        else:
            whole = trainer.saved_step == trainer.step
            step += "everything is saved" if whole else f"saved up to {trainer.saved_step:,}"
        if self.resume_command is None:
            return step + (f". Load the policy: surefoot.load('{where}')" if trainer.saved_step >= 0 else "")
        return f"{step}. To continue:\n{self.resume_command}"

    def _last_words(self) -> None:
        self.directory.set_status("interrupted", step=self.trainer.step)
        complain(f"interrupted {self._resume_message()}")


def greeting(trainer: Trainer, directory: RunDirectory) -> str:
    """The lines printed before training starts."""
    config = trainer.config
    size = sum(p.numel() for p in trainer.policy.parameters())
    given = {name: config.flat()[name] for name, origin in config.origins.items() if origin == "given"}
    changed = ", ".join(f"{name}={value}" for name, value in given.items() if name not in ("env", "algo", "name"))
    called = "" if config.run.name is None else f"{config.run.name}: "
    lines = [
        f"{called}{config.run.algo} on {config.env.env}, seed {trainer.seed}, preset {config.preset or 'none'}"
        + (f" ({changed})" if changed else ""),
        f"{trainer.engines} on {trainer.device} ({trainer.device_reason}), "
        f"{trainer.threads}, {size:,} parameters, "
        f"{trainer.envs.num_envs * trainer.group.size} envs"
        + (f" in {trainer.group.size} processes" if trainer.group.size > 1 else ""),
        *trainer.policy.describe(),
        f"run {directory.path}",
    ]
    lines += trainer.envs.notes
    lines += [f"note: {complaint}" for complaint in _complaints(trainer)]
    for name in [name for name, origin in config.origins.items() if origin == MEMORY]:
        lines.append(f"note: {name}={config.flat()[name]}, so that minibatches are made of whole envs (a memory's)")
    lines += [f"note: {note}" for note in (*preset_notes(config), *_not_written_down(config))]
    return "\n".join(lines)


def _not_written_down(config: TrainConfig) -> list[str]:
    """Parts passed in Python that a resume could not find again."""
    named = {"algorithm": config.run.algo, "engine": config.run.engine}
    return [
        f"the {what} {name} was passed in Python and is not recorded, so this run cannot be resumed; to be "
        "found again, it must be in a file of its own"
        for what, name in named.items()
        if is_from_python(name)
    ]


def _complaints(trainer: Trainer) -> list[str]:
    """Problems of the installation that affect this run."""
    return locks.complaints() + (library.complaints() if uses_kernels(trainer.config.engine) else [])


def summarize(
    trainer: Trainer,
    directory: RunDirectory,
    evaluation: Evaluation | None,
    *,
    resume: str | None,
    next_command: str | None,
) -> Result:
    """What `--json` prints."""
    best, wanted = trainer.selection.best, trainer.config.run.target_return
    reached = evaluation is not None and wanted is not None and evaluation.mean_return >= wanted
    return {
        "run_dir": str(directory.path),
        "algo": trainer.config.run.algo,
        "env": trainer.config.env.env,
        "seed": trainer.seed,
        "preset": trainer.config.preset,
        "total_steps": trainer.step,
        "updates": trainer.update,
        "episodes": trainer.episodes,
        "seconds": trainer.seconds,
        "steps_per_second": trainer.steps_per_second,
        "time_split": trainer.timer.shares(),
        **trainer.engines.as_dict(),
        "train_return": trainer.recent_return,
        "stopped": trainer.stop_reason,
        "target_return": wanted,
        "target_reached": None if wanted is None else reached,
        "target_try": trainer.target.summary,
        "warnings": trainer.advice.said,
        "best": None if best is None else {"step": best[0], "selection_return": best[1]},
        "eval": evaluation.summary() if evaluation else None,
        "resume": resume,
        "next": next_command,
    }


@overload
def evaluation_factory(
    config: Outline, factory: Factory | None, spaces: Spaces | None = ..., *, render_mode: str
) -> EnvMaker: ...


@overload
def evaluation_factory(config: Outline, factory: Factory | None, spaces: Spaces | None = ...) -> MakeEnv: ...


def evaluation_factory(
    config: Outline,
    factory: Factory | None,
    spaces: tuple[GymSpace, GymSpace] | None = None,
    render_mode: str | None = None,
) -> MakeEnv:
    """Makes the env to evaluate in: the training one, or `eval_env` with the same wrappers.

    A wrong name, or spaces other than the policy's, is an error now rather than after the training.
    """
    native = uses_kernels(config.engine)
    if config.run.eval_env is None:
        return env_maker(config.env, factory, render_mode, native=native)
    other = replace(config.env, env=config.run.eval_env, env_kwargs=config.run.eval_env_kwargs)
    found = backend_of(other.env).spaces(other)
    for mine, theirs in zip(spaces or found, found, strict=True):
        if mine.shape != theirs.shape or type(mine) is not type(theirs):
            raise UsageError(f"eval_env={config.run.eval_env} has {theirs}; the policy is trained on {mine}")
    return env_maker(other, None, render_mode, native=native)


def warn_if_no_episode_ended(trainer: Trainer) -> None:
    """A short run may be over before the rule about it has seen enough."""
    limit = trainer.config.env.max_episode_steps or trainer.envs.time_limit
    if limit is None and trainer.episodes == 0 and not trainer.suspended:
        each = trainer.step // trainer.envs.num_envs
        trainer.advise(
            "no_episode_ends",
            f"no episode ended in the whole run ({each:,} steps of every env), and without an end there is no return. "
            "Try --max-episode-steps",
        )


def no_way_out(left: SystemExit) -> SurefootError:
    """The error for a callback that calls `sys.exit()`: with code 0, the run would look successful."""
    return SurefootError(
        f"sys.exit({left.code!r}) was called inside the run; to end it early, a callback calls trainer.stop('why')"
    )


def say(text: str, to_stderr: bool) -> None:
    """Print for people: to stdout, or to stderr if stdout is for machines. A closed pipe must not end a run."""
    stream: TextIO | None = sys.stderr if to_stderr else sys.stdout
    if stream is not None:
        print(text, file=unfailing(stream), flush=True)
