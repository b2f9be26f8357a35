"""The life of a run in several processes: they agree on the run before its first step, and only the first one writes.

The others build the same trainer with their own envs, take part in every decision and every save, and leave when the
training is over.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot import __version__
from surefoot.engine.group import joined
from surefoot.engine.torchrun import is_one_of_several, launched_as, may_be_requeued, restarted
from surefoot.errors import SurefootError, UsageError
from surefoot.runs import RunDirectory, list_runs
from surefoot.runs.files import read_json
from surefoot.training.life.signals import CALM, Interrupted, end_with_parent, signals_handled

if TYPE_CHECKING:
    from surefoot.engine.group import Group
    from surefoot.training.callbacks import Callback
    from surefoot.training.config.resolve import TrainConfig
    from surefoot.training.evaluation.evaluate import MakeEnv
    from surefoot.training.trainer import Trainer


@contextmanager
def together() -> Iterator[Group]:
    """The processes of this run. Without their launcher nobody could stop them all, so they save and end with it."""
    if is_one_of_several():
        end_with_parent()
    with joined() as group:
        yield group


def require_alike(group: Group, settings: Mapping[str, object]) -> None:
    """Refuse processes of another version or with other settings: they would wait for each other for ever."""
    told = {"the version of surefoot": __version__, **_as_text(settings)}
    first, *others = group.gather(told)
    for index, theirs in enumerate(others, 1):
        for name in first | theirs:
            if theirs.get(name) != first.get(name):
                raise UsageError(
                    f"the processes of a run must be alike, but {name} is {first.get(name)} in process 0 and "
                    f"{theirs.get(name)} in process {index}; start all of them with the same command"
                )


def _as_text(settings: Mapping[str, object]) -> dict[str, str]:
    return {name: json.dumps(value, default=str) for name, value in settings.items()}


def label_of(config: TrainConfig) -> str | None:
    """What a restart of the same launch finds its run by; a launch may train several, with other settings each."""
    launch = launched_as()
    if launch is None:
        return None
    settings = json.dumps(_as_text(config.flat()), sort_keys=True)
    return f"{launch} {blake2b(settings.encode(), digest_size=8).hexdigest()}"


def begun_before(group: Group, label: str | None, run_dir: str | Path | None) -> RunDirectory | None:
    """The run that these processes began before they were restarted, as the first process knows it.

    torchrun restarts them, or a scheduler the whole job under the same name. A job of that name which has finished its
    run is a new one.
    """
    found: str | None = None
    if group.index == 0 and label is not None and (restarted() or may_be_requeued()):
        candidates = list_runs() if run_dir is None else [RunDirectory(Path(run_dir))]
        mine = [run for run in candidates if _is_labelled(run, label)]
        if mine and (restarted() or mine[-1].read_status().get("state") != "done"):
            found = str(mine[-1].path)
    found = group.agree(found)
    return None if found is None else RunDirectory(Path(found))


def _is_labelled(run: RunDirectory, label: str) -> bool:
    try:
        return bool(read_json(run.manifest).get("label") == label)
    except SurefootError:  # another run, which is damaged
        return False


def tell(group: Group, directory: RunDirectory) -> None:
    """Tell the other processes what they need to continue a run whose directory they may not see."""
    group.agree([file.read_bytes() for file in _told_files(directory)] if group.size > 1 else [])


@contextmanager
def told(group: Group) -> Iterator[RunDirectory]:
    """A directory with what the first process tells: settings and manifest."""
    with tempfile.TemporaryDirectory(prefix="surefoot-") as folder:
        directory = RunDirectory(Path(folder))
        for file, content in zip(_told_files(directory), group.agree(list[bytes]()), strict=True):
            file.write_bytes(content)
        yield directory


def _told_files(directory: RunDirectory) -> tuple[Path, Path]:
    return directory.config, directory.manifest


def follow(trainer: Trainer, evaluation_env: MakeEnv | None, callbacks: Sequence[Callback]) -> None:
    """Train in a process that is not the first. It writes nothing."""
    trainer.attach(callbacks=callbacks, evaluation_env=evaluation_env)
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


def facts_of(group: Group, label: str | None) -> Mapping[str, object]:
    """What the manifest says about the processes and their launch; nothing about a single one without a launcher."""
    facts: dict[str, object] = {} if group.size == 1 else {"processes": group.size}
    return facts if label is None else facts | {"label": label}
