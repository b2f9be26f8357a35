"""A resumed run's new step budget, which is the horizon of its schedules, too."""

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
    """Write a changed `total_steps` down, so that the run's next resume keeps it; what to say of it.

    From here on schedules have the values of a run that was so long from the start.
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
    falling = _falling(trainer, max(0.0, 1.0 - trainer.step / before))
    return [note + (f". Linear schedules end there: {', '.join(falling)}" if falling else "")]


def _falling(trainer: Trainer, before: float) -> list[str]:
    """The settings with a linear schedule, and where they go on. `before`: what remained of the former horizon."""
    config, found = trainer.config.algorithm, []
    for name, value in config.as_dict().items():
        of = name.removesuffix("_schedule")
        if of == name or value != "linear" or (of == "learning_rate" and trainer.learner.rate_is_set):
            continue
        start = getattr(config, of)
        found.append(f"{of} goes on at {start * trainer.remaining:.3g} instead of {start * before:.3g}")
    return found
