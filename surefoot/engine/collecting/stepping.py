"""How envs are stepped through a rollout: all together, or each part at its own pace."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from surefoot.types import SteppedInParts

if TYPE_CHECKING:
    from torch import Tensor

    from surefoot.engine.collecting.collector import Collector
    from surefoot.policies.actor_critic import NoiseRows

Item = TypeVar("Item")


def step_all(collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
    """All envs step together; returns how often. `memory` is changed in place."""
    envs, storage, timer = collector.envs, collector.storage, collector.timer
    everyone, wanted = slice(0, envs.num_envs), collector.episodes_per_env
    active = None if wanted is None else storage.count_episodes(None, wanted)
    for t in range(collector.length):
        start = perf_counter()
        sent = collector.choose(t, everyone, noise, memory)
        acted = perf_counter()
        step = envs.step(sent, active)
        stepped = perf_counter()
        storage.store(t, everyone, step, memory)
        if wanted is not None:
            active = storage.count_episodes(t, wanted)
        timer.add("act", acted - start + perf_counter() - stepped)
        timer.add("env", stepped - acted)
        if active is not None and storage.time_to_look(t) and not bool(active.any()):
            return t + 1
    if active is not None and bool(active.any()):
        raise collector.past_limit()
    return collector.length


def step_parts(collector: Collector, noise: NoiseRows, memory: Tensor | None) -> int:
    """Like `step_all`, but every part continues as soon as it has stepped, without waiting for slower ones, so acting
    overlaps with stepping. Gives the same bytes if the actor has `independent_rows`.
    """
    envs, storage, timer = collector.envs, collector.storage, collector.timer
    assert isinstance(envs, SteppedInParts)
    times, ended = [0] * len(envs.parts), list[tuple[int, int]]()

    def send(part: int) -> None:
        own = envs.parts[part]
        envs.send(part, collector.choose(times[part], own, noise, memory))

    finished, before = collector.tracker.finished, len(collector.tracker.finished)
    with timer.phase("act"):
        for part in range(len(times)):
            send(part)
    while min(times) < collector.length:
        start = perf_counter()
        answered = envs.answered()
        stepped = perf_counter()
        for part in answered:
            storage.store(times[part], envs.parts[part], envs.take(part), memory)
            ended += [(times[part], episode.env) for episode in finished[before + len(ended) :]]
            times[part] += 1
            if times[part] < collector.length:
                send(part)
        timer.add("env", stepped - start)
        timer.add("act", perf_counter() - stepped)
    finished[before:] = in_order(finished[before:], ended)
    storage.sort_finals()
    return collector.length


def in_order(items: list[Item], keys: Sequence[tuple[int, int]] | Sequence[int]) -> list[Item]:
    """`items` (all, or none) in the order of their keys."""
    return [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]
