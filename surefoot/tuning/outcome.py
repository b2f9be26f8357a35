"""What a tune leaves behind: the preset, the numbers, and a picture of what mattered."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from surefoot.analysis.intervals import Estimate
from surefoot.drawing import BLUE, can_draw, look, new_figure, save
from surefoot.runs.files import write_atomic, write_json
from surefoot.text import one_line
from surefoot.training.config.presets import load_preset
from surefoot.training.config.resolve import resolve
from surefoot.tuning.folder import TuneFolder
from surefoot.tuning.task import Task
from surefoot.tuning.validate import Found
from surefoot.tuning.wording import verdict

OURS = ("threads", "seed", "name")  # settings of the runs that are not part of the preset


@dataclass(frozen=True)
class Tuned:
    """The result of `surefoot.tune`."""

    folder: Path  # the tune's, with all runs
    better: bool  # than the default, on fresh seeds, with 95 % intervals that do not overlap
    verdict: str  # the same in words, with the numbers
    preset: Path | None  # `surefoot train ENV --config PRESET`; none: no improvement was found
    settings: Mapping[str, object]  # that did best in the search; empty: the default's
    scores: Mapping[str, Estimate] = field(default_factory=dict)  # by method: IQM on fresh seeds with its interval
    importances: Mapping[str, float] = field(default_factory=dict)
    trials: int = 0
    seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: what `--json` prints and `result.json` has."""
        said = {**vars(self), "folder": str(self.folder), "preset": None if self.preset is None else str(self.preset)}
        return {**said, "scores": {name: vars(one) for name, one in self.scores.items()}}


def write_outcome(folder: TuneFolder, task: Task, found: Found) -> Tuned:
    """Write everything, and return it."""
    better = found.checked is not None and found.checked.better
    said = verdict(found.checked, task)
    values = {} if found.trial is None else dict(found.trial.values)
    written, other = (folder.preset, folder.candidate) if better else (folder.candidate, folder.preset)
    for file in (other, *(() if values else (written,))):
        with suppress(FileNotFoundError):
            file.unlink()  # left from an earlier end of this tune
    if values:
        write_preset(written, task, values, said)
    if found.importances and can_draw():
        draw_importances(folder.picture, found.importances)
    tuned = Tuned(
        folder=folder.path,
        better=better,
        verdict=said,
        preset=folder.preset if better else None,
        settings=values,
        scores={} if found.checked is None else found.checked.estimates,
        importances=found.importances,
        trials=found.trials,
        seconds=round(found.seconds, 1),
    )
    write_json(folder.result, tuned.as_dict())
    return tuned


def write_preset(file: Path, task: Task, values: Mapping[str, object], said: str) -> None:
    """A TOML file for `--config` that gives these settings, whatever preset the env has."""
    import tomli_w

    wish = task.wish
    point = task.validation_runs(0, values)["tuned"][0].point
    shipped = load_preset(task.shipped) if task.shipped is not None else {}
    usual = resolve(wish.env, wish.algo, "none").flat()
    wanted = point.config.flat()
    names = [
        name
        for name, value in wanted.items()
        if name not in (*OURS, "env", "algo") and (name in shipped or name in wish.settings or value != usual[name])
    ]
    table = {"env": wish.env, "algo": wish.algo} | {name: point.written[name] for name in names}
    head = [f"Found by `surefoot tune {wish.env} --algo {wish.algo}`.", said]
    write_atomic(file, "".join(f"# {one_line(line, 1000)}\n" for line in head) + tomli_w.dumps(table))
    again = resolve(wish.env, wish.algo, "auto", file).flat()
    unlike = [name for name, value in wanted.items() if name not in OURS and again[name] != value]
    assert not unlike, f"{file} does not give the settings that were tested: {unlike}"


def draw_importances(file: Path, importances: Mapping[str, float]) -> None:
    """A bar per setting, the most important on top."""
    names, shares = list(importances), list(importances.values())
    with look():
        figure = new_figure(6.0, 0.8 + 0.28 * len(names))
        axes = figure.subplots()
        axes.barh(names[::-1], [100 * share for share in shares[::-1]], color=BLUE)
        axes.set_xlabel("share in what set the best quarter of the trials apart (%)")
        save(figure, file)
