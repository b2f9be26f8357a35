"""A look inside one update of a run: what `surefoot replay` prints, computed in a separate process."""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException

from surefoot.dashboard.processes import surefoot
from surefoot.runs.catalog import Entry

DIFFERS = 1  # the exit code of a replay whose row is not the one that was logged


class Replays:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[str]] = set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def look(self, entry: Entry, update: str) -> str:
        """The text; HTTPException says why there is none."""
        if not (update.isascii() and update.isdigit()):
            raise HTTPException(400, f"'{update[:40]}' is not the number of an update")
        if self._turn.locked():  # each may take as long as the run did
            raise HTTPException(409, "another update is being replayed; try again when it is done")
        task = asyncio.create_task(self._replay(entry, update))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await task

    async def _replay(self, entry: Entry, update: str) -> str:
        async with self._turn:
            done = await surefoot("replay", str(entry.directory.path.absolute()), "--update", update)
        if done.code not in (0, DIFFERS) or not done.out:
            raise HTTPException(422, done.why)
        return done.out
