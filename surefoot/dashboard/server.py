"""Serve the page until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Timer

import uvicorn

from surefoot.dashboard.app import make_app
from surefoot.dashboard.guard import new_token
from surefoot.loopback import is_loopback, listen
from surefoot.patient_server import Patience, PatientServer
from surefoot.text import print

PATIENCE = 1.0  # seconds after Ctrl-C in which answers may still finish
ARRIVE = 10.0  # seconds that the head of a request may take


def serve(root: Path, host: str, port: int, *, open_browser: bool) -> None:
    """Print the address and serve. UsageError if the port is taken or the host is not one of this machine's."""
    listening = listen("surefoot ui", host, port)
    token = None if is_loopback(host) else new_token()
    address = address_of(host, listening.getsockname()[1], token)
    print(f"surefoot ui: {address}", flush=True)
    print(f"runs: {root.absolute()}   (Ctrl-C stops the page, not the runs)", flush=True)
    if token is not None:
        print("note: other machines can reach this page; anyone who has this link can see your runs", flush=True)
    if open_browser:
        Timer(0.5, webbrowser.open, [address]).start()
    app = make_app(root, host=host, token=token)
    config = uvicorn.Config(
        app,
        log_level="error",
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=5,
        ws="none",
    )
    with listening, suppress(KeyboardInterrupt):  # Ctrl-C is how this command ends
        _Server(config, app.state.page.live.end).run(sockets=[listening])


class _Server(PatientServer):
    """`before_end`: called before waiting for open connections to close, since every page keeps one open."""

    def __init__(self, config: uvicorn.Config, before_end: Callable[[], None]) -> None:
        super().__init__(config, Patience(ARRIVE, None))  # the page's live connection is an answer without an end
        self._before_end = before_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._before_end()
        asyncio.get_running_loop().call_later(PATIENCE, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        """Close what is still open: an answer to a browser that stopped reading would never end."""
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def address_of(host: str, port: int, token: str | None) -> str:
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    if ":" in shown:
        shown = f"[{shown}]"
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
