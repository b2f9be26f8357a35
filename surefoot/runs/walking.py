"""Finds the folders of runs below a directory."""

from __future__ import annotations

import os
from pathlib import Path
from time import time
from typing import NamedTuple

OWN = {"checkpoints", "tensorboard", "videos", "crash", "exports"}  # folders of a run, which contain no other runs
SETTLED = 2.0  # seconds after which a folder's time stamp tells whether anything was added since


class Listing(NamedTuple):
    """What a folder contains."""

    stamp: int  # its time in nanoseconds; 0: too recent to rely on
    below: list[Path]  # folders that may contain runs
    is_run: bool


def run_folders(root: Path, known: dict[Path, Listing] | None = None) -> list[Path]:
    """The folders of all runs below `root`, in no particular order. Links are not followed.

    Folders that are being removed are skipped. Unreadable ones may be runs, so they are included. `known`: what the
    last walk found, brought up to date here; a folder is listed again only if its time stamp changed.
    """
    before, seen = known or {}, {}
    found, waiting = [], [root]
    while waiting:
        folder = waiting.pop()
        try:
            listing = seen[folder] = _listing(folder, before.get(folder))
        except PermissionError:
            found.append(folder)
            continue
        except OSError:
            continue
        waiting += listing.below
        if listing.is_run:
            found.append(folder)
    if known is not None:
        known.clear()
        known.update(seen)
    return found


def _listing(folder: Path, known: Listing | None) -> Listing:
    stamp = os.stat(folder).st_mtime_ns
    if known is not None and known.stamp == stamp:
        return known
    with os.scandir(folder) as entries:
        inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    is_run = ("manifest.json", False) in inside
    below = [folder / name for name, is_dir in inside if is_dir and not (is_run and name in OWN)]
    # A change within the clock's resolution leaves the same stamp: do not rely on a fresh one.
    return Listing(stamp if time() - stamp / 1e9 > SETTLED else 0, below, is_run)
