"""`episodes.csv`: a row per training episode.

    step,return,length,seed,env,info/NAME…,seconds

`step` is the run's step after the update that learned from the episode's end. Everything but `seconds` is the same in
two equal runs; it comes last, so that it is easy to leave out when comparing files.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from surefoot.errors import CheckpointError
from surefoot.runs.files import read_lines

EpisodeRow: TypeAlias = dict[str, int | float | None]
FIRST, LAST = ("step", "return", "length", "seed", "env"), "seconds"
WHOLE = {"step", "length", "seed", "env"}


def header(info_keys: Sequence[str]) -> bytes:
    """The first line. `info_keys`: the names given to `--log-info`."""
    names = (*FIRST, *(f"info/{key}" for key in info_keys), LAST)
    return (",".join(_cell(name) for name in names) + "\n").encode()


def _cell(name: str) -> str:
    """Quote a cell that contains a comma or a quote; line breaks are replaced."""
    plain = " ".join(name.splitlines())
    return '"' + plain.replace('"', '""') + '"' if set(plain) & {",", '"'} else plain


def read_episodes(path: Path) -> Iterator[EpisodeRow]:
    """Every complete row, as numbers by the names in the header; None for empty cells."""
    names: list[str] | None = None
    for number, (_, line) in enumerate(read_lines(path), 1):
        try:
            if names is None:
                (names,) = csv.reader([line.decode().rstrip("\n")])
                continue
            cells = line.decode().rstrip("\n").split(",")
            yield {name: _number(name, cell) for name, cell in zip(names, cells, strict=True)}
        except (ValueError, csv.Error) as error:
            raise CheckpointError(f"{path} is damaged in line {number}: {error}") from None


def monitor_text(rows: Iterable[EpisodeRow], started: float, env: str) -> str:
    """The rows in the format of Stable-Baselines3's Monitor, which plotting tools read: return, length, seconds.

    `started`: in seconds since 1970.
    """
    lines = [f"#{json.dumps({'t_start': started, 'env_id': env})}", "r,l,t"]
    lines += [f"{row['return']},{row['length']},{row['seconds']}" for row in rows]
    return "\n".join(lines) + "\n"


def _number(name: str, cell: str) -> int | float | None:
    if not cell:
        return None
    return int(cell) if name in WHOLE else float(cell)
