"""`surefoot train ENV --seeds 0..7 --vary NAME=A,B`: the settings in which runs that are trained at once differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.own_numbers import OWN_NUMBERS
from surefoot.errors import UsageError
from surefoot.sweep.grid import Grid, parse_vary

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping, Sequence

    from surefoot.training.config.resolve import TrainConfig

ELSEWHERE = {  # settings that are listed in another way
    "seed": "list the seeds after --seeds",
    "env": "a run has one environment; `surefoot sweep --env A B` trains on several, side by side",
    "algo": "a run has one algorithm; `surefoot sweep --env {env} --algo A B` trains several, side by side",
}


def add_vary(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help="with --seeds: train each of these values of a number, such as learning_rate, with each seed, all at once "
        "(may be repeated)",
    )


def varied(
    words: Sequence[str],
    typed: Mapping[str, object],
    base: TrainConfig,
    resolve_with: Callable[[Mapping[str, object]], TrainConfig],
) -> dict[str, TrainConfig]:
    """Every combination, by a name for its runs' directories. `base`: the settings without `--vary`."""
    values = parse_vary(words)
    if not values:
        return {"": base}
    _check(values, base)
    from surefoot.sweep.plan import Point  # imported here, because it would slow down `--help`

    points: dict[str, Point] = {}
    for given in Grid(envs=(base.env.env,), settings=typed, vary=values).combinations():
        point = Point(resolve_with(given), tuple(values), "auto")
        if point.key in points:
            raise UsageError(f"--vary names {point.label} twice; give each value once")
        points[point.key] = point
    return {point.label: point.config for point in points.values()}


def _check(values: Mapping[str, Sequence[object]], base: TrainConfig) -> None:
    """Refuse what runs that are trained at once must have in common. Unknown names are left to the resolver."""
    known, env = base.flat(), base.env.env
    for name, several in values.items():
        written = f"--vary {name}={_written(several)}"
        if name in ELSEWHERE:
            raise UsageError(f"{written}: {ELSEWHERE[name].format(env=env)}")
        if name in known and name not in OWN_NUMBERS:
            numbers = ", ".join(one for one in OWN_NUMBERS if one in known)
            raise UsageError(
                f"{written}: runs that are trained at once have the same {name}; they may differ in {numbers}. "
                f"`surefoot sweep --env {env} {written}` trains such runs side by side in processes of their own"
            )
        if name in known and len(several) < 2:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{written} has one value; give at least two, or use {flag} {several[0]} for all runs")
    if base.algorithm_class not in ALGORITHMS.values():
        raise UsageError(
            f"--vary is for surefoot's own algorithms, whose settings are known to be numbers of each agent; "
            f"`surefoot sweep --env {env}` trains {base.algo_name} with several values"
        )


def _written(values: Sequence[object]) -> str:
    texts = [str(value) for value in values]
    separator = ";" if any("," in text for text in texts) else ","
    return separator.join(texts) if separator == "," else f"'{separator.join(texts)}'"
