"""The life of a run in several processes: they agree on the run before its first step, and only the first one writes.

The others build the same trainer with their own envs, take part in every decision and every save, and leave when the
training is over.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot import __version__
from surefoot.engine.group import launched_as
from surefoot.errors import UsageError
from surefoot.runs import RunDirectory, list_runs
from surefoot.runs.files import read_json
from surefoot.training.life.signals import CALM, Interrupted, signals_handled

if TYPE_CHECKING:
    from surefoot.engine.group import Group
    from surefoot.training.callbacks import Callback
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.trainer import Trainer

OWN = ("seed",)  # settings that may differ until they are agreed on


def require_alike(group: Group, config: TrainConfig) -> None:
    """Refuse processes of another version or with other settings: they would wait for each other for ever."""
    if group.size == 1:
        return
    settings = {name: value for name, value in config.flat().items() if name not in OWN}
    facts: dict[str, object] = {"the version of surefoot": __version__, **settings}
    told = {name: json.dumps(value, default=str) for name, value in facts.items()}
    for index, theirs in enumerate(group.gather(told)):
        for name in told | theirs:
            first = group.agree(told.get(name))
            if theirs.get(name) != first:
                raise UsageError(
                    f"the processes of a run must be alike, but {name} is {first} in process 0 and {theirs.get(name)} "
                    f"in process {index}; start all of them with the same command"
                )


def begun_before(group: Group, run_dir: str | Path | None) -> RunDirectory | None:
    """The run that these processes began before torchrun restarted them, as the first process knows it."""
    label = launched_as()
    found: str | None = None
    if group.size > 1 and group.index == 0 and label is not None:
        candidates = list_runs() if run_dir is None else [RunDirectory(Path(run_dir))]
        mine = [run for run in candidates if run.manifest.exists() and _label(run) == label]
        found = str(mine[0].path) if mine else None
    found = group.agree(found)
    return None if found is None else RunDirectory(Path(found))


def _label(run: RunDirectory) -> object:
    try:
        return read_json(run.manifest).get("launched_as")
    except (OSError, ValueError):
        return None


class Told:
    """The files of a run that the other processes need to continue it; they may not see its directory."""

    def __init__(self, group: Group, directory: RunDirectory) -> None:
        own = None
        if group.index == 0:
            own = (directory.config.read_text(encoding="utf-8"), read_json(directory.manifest))
        self.config, self.manifest = group.agree(own) or ("", {})
        self._folder = tempfile.TemporaryDirectory(prefix="surefoot-")
        self.directory = RunDirectory(Path(self._folder.name))
        self.directory.config.write_text(self.config, encoding="utf-8")
        self.directory.manifest.write_text(json.dumps(self.manifest), encoding="utf-8")


def follow(trainer: Trainer, evaluation_env: MakeEnv | None, callbacks: Sequence[Callback]) -> None:
    """Train in a process that is not the first. It writes nothing."""
    trainer.selection.make = trainer.target.make = evaluation_env
    trainer.callbacks = list(callbacks)
    with signals_handled(trainer.suspend, trainer.saving.ask, calm=CALM) as signals:
        trainer.train()
    if signals.received:
        raise Interrupted("", 128 + signals.received)


def different_number(group: Group, directory: RunDirectory) -> list[str]:
    """Sums over another number of processes round differently."""
    before = read_json(directory.manifest).get("processes", 1)
    if before == group.size:
        return []
    return [f"note: the run began with {before} processes and continues with {group.size}: not exact to the last bit"]


def facts_of(group: Group) -> Mapping[str, object]:
    """What the manifest says about the processes; nothing if there is one."""
    return {} if group.size == 1 else {"processes": group.size, "launched_as": launched_as()}
