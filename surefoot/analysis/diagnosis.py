"""Why a run does not learn: `diagnose(run)` applies the rules to the rows and episodes that it has written."""

from __future__ import annotations

from collections.abc import Iterator

from surefoot.analysis.curves import as_number
from surefoot.analysis.rule import LARGEST, Facts
from surefoot.analysis.rules import RULES
from surefoot.analysis.watch import Advice, Watch
from surefoot.runs import Run

__all__ = ["Advice", "diagnose"]


def diagnose(run: Run) -> list[Advice]:
    """What is wrong with a run, the likeliest cause first; nothing if it looks healthy or has no rows yet."""
    rows = list(_rows(run))
    if not rows:
        return []
    watch = Watch(facts_of(run, rows))
    episodes = sorted(_episodes(run), key=lambda episode: episode[0])
    taken = 0
    for row in rows:
        step = int(row.get("step") or 0)
        begin = taken
        while taken < len(episodes) and episodes[taken][0] <= step:
            taken += 1
        for at, env, ret, length in episodes[begin:taken]:
            watch.add_episodes([(env, ret, length)], at)
        watch.look(row)
    order = [rule.name for rule in RULES]
    return sorted(watch.advice.values(), key=lambda advice: order.index(advice.rule))


def _rows(run: Run) -> Iterator[dict[str, float | None]]:
    for row in run.metrics:
        yield {str(name): as_number(value) for name, value in row.items()}


def _episodes(run: Run) -> Iterator[tuple[int, int, float, int]]:
    """(step, env, return, length) of each episode."""
    for episode in run.episodes:
        step, env, ret, length = (episode.get(name) for name in ("step", "env", "return", "length"))
        if step is not None and env is not None and ret is not None and length is not None:
            yield int(step), int(env), float(ret), int(length)


def facts_of(run: Run, rows: list[dict[str, float | None]]) -> Facts:
    """The facts about a run that the rules may use, from its files."""
    settings: dict[str, object] = {str(name): None if value == "none" else value for name, value in run.config.items()}
    limit, steps, envs = settings.get("max_episode_steps"), settings.get("total_steps"), settings.get("num_envs")
    return Facts(
        env=str(settings.get("env", "")),
        num_envs=envs if isinstance(envs, int) and envs > 0 else 1,
        total_steps=steps if isinstance(steps, int) and steps < LARGEST else int(rows[-1].get("step") or 0),
        time_limit=limit if isinstance(limit, int) else None,
        discrete=not any(name.startswith("std/") or name == "action_clip_fraction" for row in rows[:1] for name in row),
        settings=settings,
    )
