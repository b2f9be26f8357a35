"""What the files of two runs say without a replay: their settings, rows of metrics and common checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import safetensors.torch

from surefoot.errors import CheckpointError
from surefoot.runs.checkpoints import read_verified, steps_of
from surefoot.runs.files import BROKEN
from surefoot.timetravel.journey import rows_by_update
from surefoot.timetravel.places import Place, different

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from surefoot.runs import Run

Pair = tuple[object, object]
LABELS = ("name", "tags")  # settings without an effect on training
FACTS = ("versions", "machine", "git_commit", "engine", "kernels", "torch_instructions", "threads")  # in a manifest
OF_THE_PROCESS = ("seconds", "logs", "globals", "advice")  # in a checkpoint's state
MISSING = "missing"


@dataclass(frozen=True)
class RowDifference:
    """The first rows of metrics that are not the same."""

    update: int  # the last one that the earlier of them covers
    same_until: int  # the last update of the row before
    columns: dict[str, Pair]


@dataclass(frozen=True)
class CheckpointDifference:
    """The first common checkpoint that is not the same, and where."""

    step: int
    update: int
    place: Place


def differing(a: Mapping[str, object], b: Mapping[str, object], path: str = "") -> dict[str, Pair]:
    """The leaves of two trees of plain values that are not the same, by their path."""
    found: dict[str, Pair] = {}
    for name in dict.fromkeys([*a, *b]):
        left, right = a.get(name, MISSING), b.get(name, MISSING)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found |= differing(left, right, f"{path}{name}.")
        elif left != right:
            found[f"{path}{name}"] = (left, right)
    return found


def settings_of(a: Run, b: Run) -> dict[str, Pair]:
    """The settings in which the runs differ, except labels."""
    return {name: pair for name, pair in differing(a.config, b.config).items() if name not in LABELS}


def origins_of(a: Run, b: Run) -> dict[str, Pair]:
    """Versions, machine and engine, where they differ."""
    left, right = ({name: run.manifest.get(name) for name in FACTS} for run in (a, b))
    return differing(left, right)


def first_row(a: Run, b: Run) -> RowDifference | None:
    """Columns that only one run logs are ignored: they come from another version or from a callback."""
    same_until = 0
    rows = (rows_by_update(run).items() for run in (a, b))
    for (update, left), (other, right) in zip(*rows, strict=False):
        columns = {name: (left[name], right[name]) for name in left if name in right and left[name] != right[name]}
        if columns:
            return RowDifference(min(update, other), same_until, columns)
        same_until = update
    return None


def compare_checkpoints(
    a: Run, b: Run, notes: list[str]
) -> tuple[Sequence[tuple[int, int]], CheckpointDifference | None]:
    """((step, update) of the common checkpoints that are the same, up to the first that is not; that one)."""
    mine, theirs = ({int(f.name): f for f in steps_of(run.directory.checkpoints)} for run in (a, b))
    same: list[tuple[int, int]] = []
    for step in sorted(mine.keys() & theirs.keys()):
        try:
            (_, left), (_, right) = read_verified(mine[step]), read_verified(theirs[step])
            plain = [json.loads(files["state.json"]) for files in (left, right)]
            update = int(plain[0]["journal"]["updates"])
            place = next(_inside(left, right, plain), None)
        except CheckpointError as error:
            notes.append(f"skipped: {error}")
            continue
        except (*BROKEN, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
            notes.append(f"skipped: the checkpoints of step {step:,} cannot be compared: {error!r}")
            continue
        if place is not None:
            return same, CheckpointDifference(step, update, place)
        same.append((step, update))
    return same, None


def _inside(a: Mapping[str, bytes], b: Mapping[str, bytes], plain: list[dict[str, object]]) -> Iterator[Place]:
    for name, what in (("policy.safetensors", "weights in the checkpoint"), ("state.safetensors", "state")):
        if a[name] != b[name]:
            yield from different(what, _tensors(a[name]), _tensors(b[name]))
    mine, theirs = ({name: x for name, x in state.items() if name not in OF_THE_PROCESS} for state in plain)
    for path, values in differing(mine, theirs).items():
        yield Place("state", path, None, (str(values[0]), str(values[1])))


def _tensors(data: bytes) -> dict[str, Tensor]:
    """By name, since the order in which safetensors gives them is not always the same."""
    found = safetensors.torch.load(data)
    return {name: found[name] for name in sorted(found) if name.split(".")[0] not in OF_THE_PROCESS}
