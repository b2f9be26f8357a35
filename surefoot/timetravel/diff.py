"""`surefoot.diff`: the first update, tensor and sample at which two runs differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from surefoot import notebook
from surefoot.errors import SurefootError
from surefoot.runs import Run
from surefoot.text import one_line
from surefoot.timetravel.digests import Digests
from surefoot.timetravel.files import (
    CheckpointDifference,
    Pair,
    RowDifference,
    compare_checkpoints,
    first_row,
    origins_of,
    settings_of,
)
from surefoot.timetravel.journey import History, Journey, Span
from surefoot.timetravel.places import Place, first_place
from surefoot.timetravel.replay import replay

if TYPE_CHECKING:
    from surefoot.timetravel.replay import Replay
    from surefoot.training.life.trust import Trust

MOST_LISTED = 12  # settings, columns


@dataclass(eq=False)
class Difference:
    """How two runs differ, and where first. `same`: they have the same rows and weights, as far as is recorded."""

    a: Run
    b: Run
    settings: dict[str, Pair]  # settings that differ, except for labels
    origins: dict[str, Pair]  # versions, machine and engine that differ
    ends: tuple[int, int]  # the last update of each
    row: RowDifference | None = None  # the first row of metrics that differs
    checkpoint: CheckpointDifference | None = None  # the first common checkpoint that differs
    update: int | None = None  # the first update that differs
    place: Place | None = None  # the first number that differs in it
    replays: tuple[Replay, Replay] | None = None  # both runs' replays of that update
    notes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        return self.row is None and self.checkpoint is None and self.ends[0] == self.ends[1]

    def __repr__(self) -> str:
        return f"Difference({self.verdict})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        rows = {"verdict": self.verdict}
        rows |= {f"setting {name}": f"{a} | {b}" for name, (a, b) in self.settings.items()}
        return notebook.table(f"{self.a.path} | {self.b.path}", rows)

    @property
    def verdict(self) -> str:
        """In one line."""
        if self.same:
            return f"the same: {self.ends[0]:,} updates"
        if self.place is not None:
            return f"they first differ in update {self.update:,}; {self.place}"
        if self.checkpoint is not None and (self.row is None or self.checkpoint.update <= self.row.update):
            return f"the checkpoints of step {self.checkpoint.step:,} differ; {self.checkpoint.place}"
        if self.row is not None:
            columns = ", ".join([*self.row.columns][:MOST_LISTED])
            return f"they first differ between updates {self.row.same_until + 1:,} and {self.row.update:,}: {columns}"
        (ends, shorter), (goes_on, longer) = sorted(zip(self.ends, "AB", strict=True))
        return f"the same up to update {ends:,}, where {shorter} ends; {longer} goes on to {goes_on:,}"

    def lines(self) -> list[str]:
        """The full report, for a terminal."""
        found = [f"A {self.a.path}", f"B {self.b.path}"]
        for title, pairs in (("settings", self.settings), ("made with", self.origins)):
            found += _listed(title, pairs)
        if self.row is not None:
            where = f"the row of update {self.row.update:,}"
            found += _listed(f"{where}, the first that differs", self.row.columns)
        if self.checkpoint is not None and self.place is not None:
            found.append(f"the checkpoints of step {self.checkpoint.step:,} differ; {self.checkpoint.place}")
        return [*found, *map(one_line, self.notes), self.verdict]

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        row, checkpoint = self.row, self.checkpoint
        columns = {} if row is None else {name: list(pair) for name, pair in row.columns.items()}
        return {
            "a": str(self.a.path),
            "b": str(self.b.path),
            "same": self.same,
            "verdict": self.verdict,
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "made_with": {name: list(pair) for name, pair in self.origins.items()},
            "updates": list(self.ends),
            "row": None if row is None else {"update": row.update, "columns": columns},
            "checkpoint": None
            if checkpoint is None
            else {"step": checkpoint.step, "update": checkpoint.update, **checkpoint.place.as_dict()},
            "update": self.update,
            "place": None if self.place is None else self.place.as_dict(),
            "notes": self.notes,
        }


def _listed(title: str, pairs: dict[str, Pair]) -> list[str]:
    if not pairs:
        return []
    shown = [f"  {one_line(name)}: {one_line(str(a))} | {one_line(str(b))}" for name, (a, b) in pairs.items()]
    more = [f"  and {len(shown) - MOST_LISTED} more"] if len(shown) > MOST_LISTED else []
    return [f"{title} (A | B)", *shown[:MOST_LISTED], *more]


class How(TypedDict):
    """How runs are replayed."""

    strict: bool
    trust: Trust
    progress: bool


def diff(
    a: Run | str | Path,
    b: Run | str | Path,
    *,
    strict: bool = False,
    trust: Trust = False,
    progress: bool = False,
) -> Difference:
    """Find where two runs differ: their settings, the first row of metrics, and, by replaying both, the first update,
    tensor and sample. Writes nothing to their directories.

    `strict`, `trust` and `progress`: as for `replay`. Where a run cannot be replayed, the files alone are compared.
    """
    left, right = (run if isinstance(run, Run) else Run(run) for run in (a, b))
    ends = (History.read(left).last["update"], History.read(right).last["update"])
    found = Difference(left, right, settings_of(left, right), origins_of(left, right), ends)
    found.row = first_row(left, right)
    same, found.checkpoint = compare_checkpoints(left, right, found.notes)
    parted = [one.update for one in (found.row, found.checkpoint) if one is not None]
    if parted and left.path.resolve() != right.path.resolve():
        how: How = {"strict": strict, "trust": trust, "progress": progress}
        try:
            _locate(found, min(*parted, *ends), [update for _, update in same], how)
        except SurefootError as error:
            found.notes.append(f"the runs could not be replayed, so only their files are compared: {error}")
    return found


def _locate(found: Difference, last: int, same: list[int], how: How) -> None:
    """Replay both as far as they are known to differ, from where they are known or seem to be the same."""
    certain = max((update for update in same if update < last), default=0)
    likely = max(certain, found.row.same_until if found.row is not None and found.row.same_until < last else 0)
    for begin in dict.fromkeys((likely, certain, 0)):
        update = _first_update(found, Span(begin + 1, last), how) if begin + 1 < last else last
        if update is not None:
            one, other = (replay(run, update, **how) for run in (found.a, found.b))
            place = first_place(one, other)
        if update is None or place is None:
            found.notes.append(
                f"when replayed, both runs compute the same up to update {last:,}: only their files differ, or they "
                "were made by other code, callbacks or envs than those installed now"
            )
            return
        if update == begin + 1 and begin and place.what == "weights before the update":
            continue  # equal rows, but different weights: they differ earlier
        found.update, found.place, found.replays = update, place, (one, other)
        for name, run in (("A", one), ("B", other)):
            if run.parted is not None:
                found.notes.append(f"note: from update {run.parted:,} on, the replay of {name} is not as logged")
        return


def _first_update(found: Difference, span: Span, how: How) -> int | None:
    """The first update of the span that is not the same in both."""
    digests = []
    for run in (found.a, found.b):
        seen = Digests()
        Journey(run, span, seen, progress=how["progress"]).travel(how["trust"], strict=how["strict"])
        digests.append(seen.found)
    left, right = digests
    return next((update for update in left if left[update].whole != right[update].whole), None)
