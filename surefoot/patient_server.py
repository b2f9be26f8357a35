"""The uvicorn server behind `ui` and `serve`: it hangs up on connections that do not move on, and reports calmly."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import sys
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

import uvicorn

from surefoot.text import print

NO_MORE_CONNECTIONS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
PAUSE = 60.0  # seconds between two notes about that


class PatientServer(uvicorn.Server):
    """A uvicorn server with `Patience` and a `Reporter`."""

    def __init__(self, config: uvicorn.Config, patience: Patience) -> None:
        super().__init__(config)
        self._patience = patience

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(Reporter())
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self._patience.look(self.server_state.connections)
        return await super().on_tick(counter)


class Reporter:
    """asyncio's reports of errors. It reports every connection that finds no free file, thousands in a second."""

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in NO_MORE_CONNECTIONS:
            loop.default_exception_handler(dict(context))
        elif monotonic() - self._last > PAUSE:
            self._last = monotonic()
            print(f"note: no more connections can be taken at present: {error.strerror}", file=sys.stderr, flush=True)


class Patience:
    """Hangs up on connections that do not move on, which uvicorn keeps for ever: a few hundred would shut others out.

    `arrive`: seconds that the head of a request may take, and reading the end of the last answer.
    `answer`: seconds for the rest of the request and its answer; None: any number, for answers that are streams.
    """

    def __init__(self, arrive: float, answer: float | None) -> None:
        self._arrive, self._answer = arrive, answer
        self._since: dict[object, tuple[object, float]] = {}  # connection: (what it is doing, since when)

    def look(self, connections: Iterable[Any]) -> None:
        """Call this about once a second with the connections of a uvicorn server."""
        now, before = monotonic(), self._since
        self._since = {}
        for connection in list(connections):
            doing, most = self._doing(connection)
            if most is None:
                continue
            same, since = before.get(connection, (None, now))
            if same != doing:
                since = now
            if now - since > most:
                connection.transport.abort()
            else:
                self._since[connection] = doing, since

    def _doing(self, connection: Any) -> tuple[object, float | None]:
        """(what a connection is doing, the seconds that it may take). uvicorn limits the time between requests."""
        if connection.transport.is_closing():
            return "closing", self._arrive
        request = connection.cycle
        if request is not None and not request.response_complete:
            return request, self._answer
        waits = connection.timeout_keep_alive_task is not None
        return ("after", request), None if waits else self._arrive
