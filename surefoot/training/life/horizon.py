"""A resumed run's new step budget, which is also the horizon of its schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from surefoot.errors import UsageError
from surefoot.runs.files import read_json, write_atomic, write_json
from surefoot.training.config.resolve import resolve
from surefoot.training.config.toml_files import to_toml

if TYPE_CHECKING:
    from surefoot.runs import RunDirectory
    from surefoot.training.trainer import Trainer


def set_horizon(trainer: Trainer, directory: RunDirectory) -> list[str]:
    """Save a changed `total_steps`, so that the next resume keeps it. Returns messages about it.

    From here on, schedules have the values they would have had if the run had been that long from the start.
    """
    stored = resolve(preset=None, config_file=directory.config, agreed=trainer.config.run.algo)
    before, now = stored.run.total_steps, trainer.budget
    if before == now:
        return []
    manifest = read_json(directory.manifest)
    earlier = manifest.get("extended")
    extended = [*(earlier if isinstance(earlier, list) else []), {"step": trainer.step, "from": before, "to": now}]
    try:
        write_atomic(directory.config, to_toml(replace(stored, run=replace(stored.run, total_steps=now))))
        write_json(directory.manifest, manifest | {"extended": extended})
    except OSError as error:
        raise UsageError(f"cannot write the run directory {directory.path}: {error.strerror}") from None
    note = f"total_steps is {now:,} from now on; it was {before:,}"
    changing = _changing(trainer, max(0.0, 1.0 - trainer.step / before))
    return [note + (f". Schedules end there: {', '.join(changing)}" if changing else "")]


def _changing(trainer: Trainer, before: float) -> list[str]:
    """The settings with a schedule and their new values. `before`: the fraction that remained under the old horizon."""
    config, found = trainer.config.algorithm, []
    then, now = config.at(before).as_dict(), config.at(trainer.remaining).as_dict()
    for name, value in then.items():
        if now[name] != value and not (name == "learning_rate" and trainer.learner.rate_is_set):
            found.append(f"{name} goes on at {now[name]:.3g} instead of {value:.3g}")
    return found
