"""Rejects settings that have no effect, given the others. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surefoot.envs.backends import backend_of
from surefoot.errors import UsageError

if TYPE_CHECKING:
    from surefoot.algorithms import Algorithm
    from surefoot.training.config.resolve import TrainConfig


def check_inert(config: TrainConfig, algorithm: Algorithm) -> None:
    """Reject flags and keywords without effect. Files are not checked: a run's config.toml lists every setting."""
    for name, why in _without_effect(config, algorithm):
        if config.origins.get(name) == "given" and config.flat()[name] is not None:
            raise UsageError(f"{name} has no effect {why}")


def check_timeout(config: TrainConfig) -> None:
    """Reject a time limit from a file or a preset for envs without workers: a hanging env could not be stopped.

    Only new runs are checked: `--workers auto` may have left an older one without workers.
    """
    if config.env.workers == 0 and config.origins.get("workers") != "given":
        usual, found = type(config.env).env_timeout, config.env.env_timeout
        if found != usual:
            raise UsageError(
                f"env_timeout={found:g} ({config.origins['env_timeout']}) has no effect {no_workers(config)}"
            )


def no_workers(config: TrainConfig) -> str:
    """Why a time limit has no effect without workers, and what to do."""
    alone = backend_of(config.env.env).no_workers
    advice = "drop it, as no worker can step this env" if alone else "set --workers 1 (or more) as well, or drop it"
    return f"without workers (an env that hangs in this process cannot be stopped); {advice}"


def _without_effect(config: TrainConfig, algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    algo, typed = config.algo_name, {name for name, origin in config.origins.items() if origin == "given"}
    timed = config.env.env_timeout != type(config.env).env_timeout  # `train(**run.config)` gives every setting
    if config.env.workers == 0 and (timed or "workers" not in typed):
        yield "env_timeout", no_workers(config)
    # If evaluation is disabled explicitly, its other settings may stay unused.
    if config.run.eval_every is None and "eval_every" not in typed:
        yield "selection_episodes", "without eval_every; set --eval-every (the final evaluation has --eval-episodes)"
        yield "patience", "without eval_every: it counts evaluations during training; set --eval-every, or drop it"
    if not algorithm.uses_critic:
        for name in ("critic_hidden_sizes", "critic_obs", "shared_trunk"):
            yield name, f"with {algo}, which has no critic; drop it"
    if config.algorithm.as_dict().get("value_epochs") is not None and algorithm.train_actor:
        yield "value_coef", "with value_epochs, where the critic has a loss of its own; drop one of the two"
    if algorithm.episodes_per_env is not None:
        yield "rollout_length", f"with {algo}, which learns from whole episodes; set --reset-each-rollout, or drop it"
    elif "episodes_per_env" in config.algorithm.as_dict():
        yield "episodes_per_env", "with reset_each_rollout, where a rollout is an episode; drop one of the two"


def check_ready(config: TrainConfig, algorithm: Algorithm) -> None:
    """Checks settings for a ready-made vector env, which is used unchanged; evaluation may use another env."""
    if config.run.eval_env is not None:
        return
    # Whole episodes need the maximum length, which a vector env may not report.
    names = ("frame_stack", "max_episode_steps") if algorithm.episodes_per_env is None else ("frame_stack",)
    for name in names:
        if config.origins.get(name) == "given" and config.flat()[name] not in (None, 1):
            raise UsageError(f"{name} cannot be applied to a ready-made vector env; apply it when you make the env")
