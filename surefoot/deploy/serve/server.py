"""Serves one checkpoint until a signal ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from surefoot.deploy.describe import read_program
from surefoot.deploy.light_agent import LightAgent
from surefoot.deploy.serve.app import PATIENCE, App, Limits
from surefoot.loopback import listen
from surefoot.patient_server import Patience, PatientServer
from surefoot.text import print

if TYPE_CHECKING:
    from surefoot.deploy.program import Program

HOST = "127.0.0.1"
MOST_CONNECTIONS = 512
IDLE = 75  # seconds after which a silent connection is closed
LAST = 3  # seconds in which open requests may finish at the end
LONGEST = 60.0  # seconds from the head of a request to the last byte of its answer


def serve(folder: Path, port: int, limits: Limits, seed: int) -> None:
    """Print the address and serve the policy of a checkpoint. UsageError if the port is taken."""
    program = read_program(folder)
    app = App(LightAgent(program, seed), {"checkpoint": str(folder), **_described(program)}, limits)
    with listen("surefoot serve RUN", HOST, port) as listening:
        print(f"surefoot serve: http://{HOST}:{listening.getsockname()[1]}/act", flush=True)
        print(f"{app.batcher.agent} of {folder}   (Ctrl-C ends it)", flush=True)
        make_server(app).run(sockets=[listening])


def make_server(app: App, arrive: float = PATIENCE) -> uvicorn.Server:
    """`arrive`: seconds that the head of a request may take."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=LAST,
    )
    return _Server(config, Patience(arrive, LONGEST))


class _Server(PatientServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the server. uvicorn would raise them again afterwards, as if it had failed."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _described(program: Program) -> dict[str, object]:
    return {
        "observation_space": str(program.layout.tree),
        "action_space": str(program.action_space),
        "memory": program.memory_size,
        "action_mask": program.layout.mask_size,
    }
