"""Short films of a run's newest policy, made by `surefoot video` in a separate process.

Films go to a temporary folder: the page writes nothing to a run.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surefoot.dashboard.processes import surefoot
from surefoot.runs import Run
from surefoot.runs.catalog import Entry

LONGEST = 600  # steps per film
KEPT = 20


@dataclass
class Film:
    """`step`: of the checkpoint that was the newest when the film was asked for; `shown`: of the one that plays."""

    run: str
    step: int
    file: Path
    shown: int | None = None
    state: Literal["filming", "ready", "failed"] = "filming"
    why: str | None = None


class Films:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="surefoot-ui-"))
        self._films: dict[tuple[str, int], Film] = {}
        self._turn = asyncio.Semaphore(1)  # one at a time: training needs the cores
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        shutil.rmtree(self._folder, ignore_errors=True)

    def get(self, run: str, step: int) -> Film | None:
        return self._films.get((run, step))

    def newest(self, entry: Entry) -> Film | None:
        """The film of the newest checkpoint, which is begun if there is none yet; None without a checkpoint."""
        step = Run(entry.directory).checkpoints.latest
        if step is None:
            return None
        film = self._films.get((entry.id, step))
        if film is None:
            self._number += 1
            film = self._films[entry.id, step] = Film(entry.id, step, self._folder / f"{self._number}.mp4")
            task = asyncio.create_task(self._make(entry, film))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._drop_old()
        return film

    def forget(self, film: Film) -> None:
        """Drop a film, so that the next request tries again."""
        self._films.pop((film.run, film.step), None)

    def _drop_old(self) -> None:
        done = [key for key, film in self._films.items() if film.state != "filming"]
        for key in done[: max(0, len(self._films) - KEPT)]:
            self._films.pop(key).file.unlink(missing_ok=True)

    async def _make(self, entry: Entry, film: Film) -> None:
        words = ["video", str(entry.directory.path.absolute()), "--out", str(film.file)]
        # Without a step, it films the newest checkpoint then; a quick run may have removed the one that was asked for.
        words += ["--max-steps", str(LONGEST), "--json"]
        async with self._turn:
            done = await surefoot(*words)
        ready = done.code == 0 and film.file.is_file()
        film.shown = _step(done.out) if ready else None
        film.state = "ready" if ready else "failed"
        film.why = None if ready else done.why


def _step(told: str) -> int | None:
    """The step of the filmed policy, from the last line of output, which is JSON."""
    try:
        step = json.loads(told.strip().splitlines()[-1])["step"]
    except (ValueError, IndexError, KeyError):
        return None
    return step if isinstance(step, int) else None
