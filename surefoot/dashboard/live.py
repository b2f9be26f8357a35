"""What changes, told to every open page: one look a second for all of them, and none while no page is open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from time import perf_counter

from surefoot.dashboard.replies import to_json
from surefoot.runs import Catalog
from surefoot.runs.catalog import Entry

EVERY = 1.0  # seconds between two looks
SHARE = 50  # a look that takes t seconds is followed by at least SHARE·t of rest: training beside it needs the cores
WAITING = 100  # events that are kept for a page that does not read them; it then has to connect again
ALIVE = 15.0  # seconds after which a page that heard nothing hears that the server is there


class Live:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._turn = asyncio.Lock()
        self._listeners: set[asyncio.Queue[str]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._over = False

    def end(self) -> None:
        """Let go of every page: a server that is to stop waits for them."""
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
        """A laptop that was closed with the page open must not fill the memory of the server."""
        if listener.qsize() >= WAITING:
            self._listeners.discard(listener)
            while not listener.empty():
                listener.get_nowait()
            text = ""
        listener.put_nowait(text)

    async def stream(self) -> AsyncIterator[str]:
        """Server-sent events for one page, until an empty text says that it is over."""
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
            with suppress(OSError):  # the disk does not answer right now
                took = await self.look()
            await asyncio.sleep(max(EVERY, SHARE * took))


def event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {to_json(data)}\n\n"


def as_json(entry: Entry) -> dict[str, object]:
    return {name: value for name, value in vars(entry).items() if name != "directory"}
