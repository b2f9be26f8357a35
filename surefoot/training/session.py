"""The life of one run in one process: set up, train, save, evaluate, and leave in order whatever happens."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from surefoot.envs.make import make_env
from surefoot.errors import UsageError
from surefoot.runs.files import write_json
from surefoot.training.evaluate import Evaluation, evaluate_agent
from surefoot.training.loggers import FileLog, TensorBoardLog
from surefoot.training.progress import make_progress

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.runs import RunDirectory
    from surefoot.training.callbacks import Callback
    from surefoot.training.config import TrainConfig
    from surefoot.training.trainer import Trainer

    MakeEnv = Callable[[], gym.Env[Any, Any]]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop by a signal, and has saved itself."""

    def __init__(self, message: str, exit_code: int = 130) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Session:
    """A trainer, its directory, and what surrounds them."""

    trainer: Trainer
    directory: RunDirectory
    evaluation_env: MakeEnv | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = True
    to_stderr: bool = False
    resumable: bool = True  # the env can be made again from the run's directory

    def run(self) -> dict[str, Any]:
        """Train to the end, evaluate, write the result. Whatever ends it, `status.json` says so."""
        trainer, directory = self.trainer, self.directory
        display = make_progress(enabled=self.progress, to_stderr=self.to_stderr)
        trainer.callbacks = [*self.callbacks, FileLog(directory), TensorBoardLog(directory, trainer.step), display]
        directory.note(greeting(trainer, directory))
        directory.set_status("running", step=trainer.step)
        try:
            with stop_on_signals(trainer) as signals:
                trainer.train()
            if signals.received:
                raise Interrupted(self._saved_message(), 128 + signals.received)
            evaluation = self._evaluate(display)
            result = summarize(trainer, directory, evaluation)
            write_json(directory.result, result)
        except KeyboardInterrupt as interrupt:
            directory.set_status("interrupted", step=trainer.step)
            raise interrupt if isinstance(interrupt, Interrupted) else Interrupted(self._rescue()) from None
        except BaseException as error:
            directory.set_status("failed", step=trainer.step, error=f"{type(error).__name__}: {error}")
            directory.note(f"failed at step {trainer.step}: {type(error).__name__}: {error}")
            self._rescue()
            raise
        found = evaluation.mean_return if evaluation else None
        directory.set_status("done", step=trainer.step, eval_return=found, why=trainer.stop_reason)
        return result

    def _evaluate(self, display: Any) -> Evaluation | None:
        config = self.trainer.config.run
        if self.evaluation_env is None or not config.eval_episodes:
            return None
        with display.evaluating(config.eval_episodes):
            evaluation = evaluate_agent(
                self.trainer.agent,
                self.evaluation_env,
                episodes=config.eval_episodes,
                seed=self.trainer.seed,
                max_steps=config.eval_max_steps,
            )
        for callback in self.trainer.callbacks:
            callback.on_evaluation(self.trainer, evaluation)
        return evaluation

    def _rescue(self) -> str:
        """After an error or a second interrupt in mid-rollout: the weights are whole, the open episodes are not."""
        if not self.trainer.step:
            return "before the first update; nothing was learned"
        if self.trainer.saved_step != self.trainer.step:
            try:
                self.trainer.save(mid_rollout=True)
            except OSError as error:  # a full disk must not hide what went wrong in the first place
                message = f"at step {self.trainer.step:,}, which could not be saved ({error}); older checkpoints stand"
                with suppress(OSError):
                    self.directory.note(message)
                return message
        return self._saved_message()

    def _saved_message(self) -> str:
        where = self.directory.path
        if self.resumable:
            return f"at step {self.trainer.step:,}; everything is saved. Go on: surefoot resume {where}"
        return f"at step {self.trainer.step:,}; the policy is saved. Load it: surefoot.load('{where}')"


class Signals:
    received: int = 0


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[Signals]:
    """First Ctrl-C or SIGTERM: finish the update in progress and save. Second: stop at once."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def handle(number: int, frame: Any) -> None:
        if signals.received:
            raise KeyboardInterrupt
        signals.received = number
        trainer.suspend(f"asked to by {signal.Signals(number).name}")

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, handle))
        yield signals


def greeting(trainer: Trainer, directory: RunDirectory) -> str:
    """What is about to run."""
    config = trainer.config
    size = sum(p.numel() for p in trainer.policy.parameters())
    given = {name: config.flat()[name] for name, origin in config.origins.items() if origin == "given"}
    changed = ", ".join(f"{name}={value}" for name, value in given.items() if name not in ("env", "algo"))
    lines = [
        f"{config.run.algo} on {config.env.env}, seed {trainer.seed}, preset {config.preset or 'none'}"
        + (f" ({changed})" if changed else ""),
        f"engine torch on {trainer.device} ({trainer.device_reason}), {size:,} parameters, "
        f"{trainer.envs.num_envs} envs",
        f"run {directory.path}",
    ]
    if not trainer.envs.exact_seeds:
        lines.append("note: a ready-made vector env has one seed for all its episodes")
    if config.preset_env not in (None, config.env.env):
        lines.append(f"note: the preset {config.preset} was made for {config.preset_env}")
    return "\n".join(lines)


def summarize(trainer: Trainer, directory: RunDirectory, evaluation: Evaluation | None) -> dict[str, Any]:
    """What `--json` prints."""
    short = None
    if evaluation is not None:
        short = {name: value for name, value in evaluation.as_dict().items() if name != "returns"}
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
        "engine": "torch",
        "train_return": trainer.recent_return,
        "stopped": trainer.stop_reason,
        "eval": short,
    }


def evaluation_factory(config: TrainConfig, factory: Any, spaces: tuple[Any, Any] | None = None) -> MakeEnv:
    """Makes the env to evaluate in: the training one, or `eval_env` with the same wrappers.

    A wrong name, or spaces other than the policy's, is an error now rather than after the training.
    """
    if config.run.eval_env is None:
        return lambda: make_env(config.env, factory)
    other = replace(config.env, env=config.run.eval_env, env_kwargs=config.run.eval_env_kwargs)
    probe = make_env(other)
    found = (probe.observation_space, probe.action_space)
    probe.close()
    for mine, theirs in zip(spaces or found, found, strict=True):
        if mine.shape != theirs.shape or type(mine) is not type(theirs):
            raise UsageError(f"eval_env={config.run.eval_env} has {theirs}; the policy is trained on {mine}")
    return lambda: make_env(other)


def say(text: str, to_stderr: bool) -> None:
    """For people: stdout, or stderr where stdout is for machines. A closed pipe is not worth a run."""
    stream = sys.stderr if to_stderr else sys.stdout
    with suppress(OSError, ValueError):
        print(text, file=stream, flush=True)
