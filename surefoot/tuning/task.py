"""What a tune works on: the env, the algorithm, the space, and the runs of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from surefoot.algorithms import get_algorithm, preset_algorithm
from surefoot.errors import UsageError
from surefoot.settings import coerce
from surefoot.sweep.grid import Grid
from surefoot.sweep.plan import Planned, Point, check_envs, expand, point_of
from surefoot.training.config.presets import automatic_preset, load_preset
from surefoot.training.config.run_config import RunConfig
from surefoot.training.life.trust import Trust
from surefoot.tuning.folder import Wish
from surefoot.tuning.rungs import Rung, make_rungs
from surefoot.tuning.space import Position, Space, encode, space_of

EPISODES = 20  # in the final evaluation of a trial's run; the check on fresh seeds has the usual number
SEEDS_APART = 100_000  # between the seeds of a tune and those of one with the next `--seed`
FRESH = 50_000  # where the seeds begin that the search never sees


@dataclass(frozen=True)
class Labelled(Point):
    """A point whose directory is named after a trial, not after its many settings."""

    label: str = ""

    @cached_property
    def name(self) -> str:
        return f"{Point(self.config, (), 'auto').name}/{self.label}"


@dataclass(frozen=True)
class Task:
    """A wish, resolved and checked."""

    wish: Wish
    space: Space
    default: Point
    shipped: str | None  # the preset that `surefoot train` would use

    @property
    def rungs(self) -> tuple[Rung, ...]:
        return make_rungs(self.wish.total_steps, self.wish.seeds, self.wish.seed * SEEDS_APART)

    @property
    def fresh_seeds(self) -> range:
        """Seeds that no trial has been trained with."""
        first = self.wish.seed * SEEDS_APART + FRESH
        return range(first, first + self.wish.validation_seeds)

    @property
    def methods(self) -> int:
        """How many methods the check on fresh seeds compares."""
        return 2 if self.shipped is None else 3

    @property
    def first_trials(self) -> dict[str, dict[str, Position]]:
        """The default, so that nothing worse is chosen knowingly, and the shipped preset as far as the space has it."""
        defaults = {name: self.default.config.flat()[name] for name in self.space}
        found = {"default": encode(self.space, defaults)}
        if self.shipped is not None:
            found["preset"] = encode(self.space, {**defaults, **load_preset(self.shipped)})
        return found

    def runs_of(self, number: int, values: Mapping[str, object], rung: Rung) -> list[Planned]:
        """The runs of a trial on a rung; UsageError if its settings contradict each other."""
        given = {"eval_episodes": EPISODES, **self.wish.settings, **values, "total_steps": rung.steps}
        point = self._labelled("none", given, f"trial-{number:03d}", f"trial-{number:03d}-{rung.steps}")
        return [Planned(point, seed) for seed in rung.seeds]

    def validation_runs(self, number: int, values: Mapping[str, object]) -> dict[str, list[Planned]]:
        """By method: the runs on fresh seeds of a trial, of the default, and of the shipped preset."""
        given = {**self.wish.settings, "total_steps": self.wish.total_steps}
        points = {
            "tuned": self._labelled("none", {**given, **values}, f"tuned-{number:03d}", f"trial-{number:03d}"),
            "default": self._labelled("none", given, "default", "default"),
        }
        if self.shipped is not None:
            points[f"preset {self.shipped}"] = self._labelled(self.shipped, given, "preset", "preset")
        return {name: [Planned(point, seed) for seed in self.fresh_seeds] for name, point in points.items()}

    def _labelled(self, preset: str, given: Mapping[str, object], name: str, label: str) -> Labelled:
        point = point_of(self.wish.env, self.wish.algo, preset, {**given, "name": name})
        return Labelled(point.config, point.given, point.preset, label)


def make_task(wish: Wish, *, source: str | None = None, trust: Trust = False) -> Task:
    """Resolve and check everything that can be checked before the first run.

    `source`: the file that the wish comes from; code that it names needs trust, unlike code that is typed.
    """
    settings = {**wish.settings, "total_steps": wish.total_steps}
    grid = Grid(envs=(wish.env,), algos=(wish.algo,), seeds=(0,), preset="none", settings=settings)
    plan = expand([grid], source=source, trust=trust)
    default = plan.runs[0].point
    if not default.config.run.eval_episodes:
        raise UsageError("tune compares final evaluations, but eval_episodes=0; give at least 1, or drop it")
    space = space_of(wish.algo, wish.settings, default.config.flat(), wish.search, only=True)
    check_envs(plan.runs)
    task = Task(wish, space, default, _fitting_preset(wish, settings))
    first = task.rungs[0]
    try:
        task.runs_of(0, {}, first)
    except UsageError as error:
        error.add_note(f"(the first rung of {wish.total_steps:,} steps has {first.steps:,}; give more --total-steps)")
        raise
    return task


def _fitting_preset(wish: Wish, settings: Mapping[str, object]) -> str | None:
    """The shipped preset, unless it contradicts what is fixed: then it is no method to compare with."""
    found = shipped_preset(wish.env, wish.algo)
    try:
        if found is not None:
            point_of(wish.env, wish.algo, found, settings)
    except UsageError:
        return None
    return found


def shipped_preset(env: str, algo: str) -> str | None:
    return automatic_preset(env, preset_algorithm(algo, get_algorithm(algo)))


def usual_steps(env: str, algo: str, given: object) -> int:
    """The steps of `surefoot train`, unless they are given."""
    shipped = shipped_preset(env, algo)
    preset = {} if shipped is None else load_preset(shipped)
    usual = preset.get("total_steps", RunConfig.total_steps)
    return coerce("total_steps", usual if given is None else given, int)
