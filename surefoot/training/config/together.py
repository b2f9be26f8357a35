"""Checks across groups of settings: minibatches must divide, the budget must cover at least one rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from surefoot.engine.config import Minibatches, check_minibatches, count_minibatches, nearest_divisor
from surefoot.errors import UsageError
from surefoot.settings import Option, coerce

if TYPE_CHECKING:
    from collections.abc import Callable

    from surefoot.engine.config import CollectConfig
    from surefoot.training.config.resolve import TrainConfig

MINIBATCHES = ("num_minibatches", "value_minibatches")


def whole_envs(known: Mapping[str, Option], values: Mapping[str, object], origins: Mapping[str, str]) -> dict[str, int]:
    """The number of minibatches for a policy with memory, which needs whole envs: the nearest number that divides them.

    A number that the user typed, or that a file sets together with the memory, is not changed; the check reports it.
    """

    def value(name: str) -> object:
        return coerce(name, values.get(name, known[name].default), known[name].type)

    if value("memory") == "none":
        return {}
    found, envs = {}, coerce("num_envs", value("num_envs"), int)
    for name in (name for name in MINIBATCHES if name in known):
        wanted: Minibatches = coerce(name, value(name), Minibatches)
        chosen = origins[name] == "default" or origins[name].startswith("preset") or origins["memory"] == "given"
        if wanted != "auto" and origins[name] != "given" and chosen and envs >= 1 and envs % wanted:
            found[name] = nearest_divisor(envs, wanted)
    return found


def check_together(config: TrainConfig, num_envs: int | None = None) -> None:
    """Refuse settings that contradict each other. `num_envs`: if it is known only once the envs are made."""
    algorithm, settings = config.algorithm, config.algorithm.as_dict()
    envs = num_envs or algorithm.num_envs
    size = envs * algorithm.rollout_length
    minibatch = settings.get("normalize_advantage") == "minibatch"
    for name, parts in minibatches(config, envs, algorithm.rollout_length).items():
        try:
            check_minibatches(size, parts, minibatch and name == "num_minibatches")
        except UsageError as error:
            raise UsageError(str(error).replace("num_minibatches", name, 1)) from None
        if config.policy.memory != "none" and envs % parts:
            raise UsageError(
                f"with memory={config.policy.memory} minibatches are made of whole envs, but num_envs={envs} is not a "
                f"multiple of {name}={parts}; change one of the two"
            )
    whole_episodes = config.new_algorithm().episodes_per_env is not None
    if not whole_episodes and size > config.run.total_steps:
        raise UsageError(
            f"total_steps={config.run.total_steps} is less than one rollout of {size} "
            f"({size // algorithm.rollout_length} envs × {algorithm.rollout_length} steps); "
            "raise --total-steps, or lower --rollout-length or --num-envs"
        )


def minibatches(config: TrainConfig, num_envs: int, length: int) -> dict[str, int]:
    """Setting name -> number of minibatches for rollouts of this size, with `auto` resolved."""
    settings, samples, memory = config.algorithm.as_dict(), num_envs * length, config.policy.memory != "none"
    units = num_envs if memory else samples
    wanted = {name: coerce(name, settings[name], Minibatches) for name in MINIBATCHES if name in settings}
    return {name: count_minibatches(parts, samples, units) for name, parts in wanted.items()}


def with_minibatches(config: TrainConfig, num_envs: int, length: int) -> TrainConfig:
    """Replace `auto` by numbers, so that `config.toml` repeats the run."""
    changed: Callable[..., CollectConfig] = replace  # the type depends on the algorithm
    return replace(config, algorithm=changed(config.algorithm, **minibatches(config, num_envs, length)))
