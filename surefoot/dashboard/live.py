"""Tells every open page what has changed. One look a second serves all pages; if no page is open, there is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from time import perf_counter

from surefoot.dashboard.replies import to_json
from surefoot.runs import Catalog
from surefoot.runs.catalog import Entry

EVERY = 1.0  # seconds between two looks
SHARE = 50  # after a look of t seconds, rest for at least SHARE·t: training needs the cores
WAITING = 100  # events queued for a page that does not read; after that it has to connect again
ALIVE = 15.0  # seconds of silence after which a comment shows that the server is still there


class Live:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._turn = asyncio.Lock()
        self._listeners: set[asyncio.Queue[str]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._over = False

    def end(self) -> None:
        """End every stream, because a server that stops waits for open connections."""
        self._over = True
        for listener in self._listeners:
            listener.put_nowait("")

    async def look(self) -> float:
        """Bring the catalog up to date and tell every page what changed; returns the seconds that it took."""
        async with self._turn:
            begin = perf_counter()
            changed = await asyncio.to_thread(self.catalog.look)
            took = perf_counter() - begin
        if changed:
            entries = self.catalog.entries
            news = {
                "changed": [as_json(entries[id]) for id in entries if id in changed],
                "gone": sorted(changed - entries.keys()),
                "latest": self.catalog.latest(),
            }
            text = event("runs", news)
            for listener in list(self._listeners):
                self._tell(listener, text)
        return took

    def _tell(self, listener: asyncio.Queue[str], text: str) -> None:
        """Queue an event. A page that stopped reading (a closed laptop) is dropped before it fills the memory."""
        if listener.qsize() >= WAITING:
            self._listeners.discard(listener)
            while not listener.empty():
                listener.get_nowait()
            text = ""
        listener.put_nowait(text)

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events for one page. An empty text in the queue ends the stream."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._listeners.add(queue)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())
        try:
            yield "retry: 1000\n\n"
            while not self._over:
                try:
                    text = await asyncio.wait_for(queue.get(), ALIVE)
                except TimeoutError:
                    text = ": still here\n\n"
                if not text:
                    return
                yield text
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._watching is not None:
                self._watching.cancel()
                self._watching = None

    async def _watch(self) -> None:
        while True:
            took = EVERY
            with suppress(OSError):  # the disk may be unavailable for a while
                took = await self.look()
            await asyncio.sleep(max(EVERY, SHARE * took))


def event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {to_json(data)}\n\n"


def as_json(entry: Entry) -> dict[str, object]:
    return {name: value for name, value in vars(entry).items() if name != "directory"}
