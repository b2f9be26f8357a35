"""The connection to a Ray cluster. Only this file imports Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from surefoot.errors import SurefootError, UsageError
from surefoot.sweep.ray_runner import Runner
from surefoot.text import one_line

REACHED = 10.0  # seconds in which a cluster must answer
SETTINGS = 4  # the type of a frame in HTTP/2


class Lost(Exception):
    """The process that carried out a run is gone, usually with its node."""


class Unreachable(Exception):
    """A node does not answer for the moment."""


def require_ray() -> None:
    found = find_spec("ray")
    if found is None or found.origin is None:  # a folder of that name is no package
        raise UsageError('--on ray needs Ray, which is not installed: pip install "surefoot[ray]"')


def check_address(address: str | None) -> None:
    """Refuse an address at which nothing listens, or another program; Ray itself would try for minutes."""
    wanted = os.environ.get("RAY_ADDRESS") or "auto" if address in (None, "auto") else address
    last = _last_cluster() if wanted == "auto" else None
    place = last or wanted.removeprefix("ray://")
    if place in ("auto", "local") or "://" in place:
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"'{wanted}' is no address of a Ray cluster; write auto, HOST:PORT or ray://HOST:PORT")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACHED) as connection:
            is_grpc = os.environ.get("RAY_USE_TLS", "0") != "0" or _speaks_http2(connection)
        why = "" if is_grpc else "another program listens there"
    except (OSError, OverflowError) as error:
        why = str(error)
    if why and last:
        raise UsageError(
            f"the last Ray cluster of this machine, at {last}, is gone: {why}; `ray start --head` starts a new one, "
            "and `ray stop` forgets the old one"
        )
    if why:
        raise UsageError(f"there is no Ray cluster at {wanted}: {why}; `ray start --head` starts one and shows where")


def _last_cluster() -> str | None:
    """The address that the last `ray start` on this machine has left for `auto`, if any."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    try:
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side greets as gRPC does, through which Ray speaks: first of all, with HTTP/2's settings."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
    return connection.recv(9)[3:4] == bytes([SETTINGS])  # the head of a frame has its type in the fourth byte


class RayCluster:
    """Starts runners and calls them. Runners and answers to come are opaque to the caller."""

    def __init__(self, address: str | None) -> None:
        # Ray reads these when it is imported: no statistics are sent, and runners hide GPUs themselves.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        self._runners = ray.remote(Runner)
        self._ours = not ray.is_initialized()
        if not self._ours:
            return
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=address,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except ConnectionError as error:
            if (address or os.environ.get("RAY_ADDRESS")) != "auto":
                raise _unconnected(error) from None
            raise UsageError(
                "there is no Ray cluster on this machine (--address auto); start one with `ray start --head`, name "
                "another with --address HOST:PORT, or leave out --address for one that ends with the sweep"
            ) from None
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise _unconnected(error) from None
        finally:
            if main:  # Ray's own handler would end the sweep before its runs are saved
                signal.signal(signal.SIGTERM, before)

    def room(self, cpus: float, gpus: float) -> int:
        """How many runs of this size fit on the nodes that are there now."""
        total = 0
        for node in self._ray.nodes():
            if node["Alive"]:
                has = node["Resources"]
                fits = [has.get("CPU", 0.0) // cpus] + ([has.get("GPU", 0.0) // gpus] if gpus else [])
                total += int(min(fits))
        return total

    def start_runner(self, cpus: float, gpus: float) -> object:
        return self._runners.options(num_cpus=cpus, num_gpus=gpus, max_restarts=0).remote()

    def call(self, runner: object, method: str, *arguments: object) -> object:
        """Returns at once; `result` has the answer once it is among `ready`."""
        return getattr(runner, method).remote(*arguments)

    def ready(self, answers: Sequence[object], seconds: float) -> list[object]:
        """Those that have arrived. Waits for the first of them."""
        found, _ = self._ray.wait(list(answers), num_returns=1, timeout=seconds)
        if found:  # and all others that are there already
            found, _ = self._ray.wait(list(answers), num_returns=len(answers), timeout=0)
        return list(found)

    def result(self, answer: object) -> object:
        errors = self._ray.exceptions
        try:
            return self._ray.get(answer)
        except errors.RayTaskError as error:
            if isinstance(error.cause, SurefootError):
                raise error.cause from None
            raise Lost(_reason(error)) from None  # a full disk there, say
        except errors.ActorUnavailableError as error:
            raise Unreachable(_reason(error)) from None
        except errors.RayActorError as error:
            if "ModuleNotFoundError" in str(error):
                raise SurefootError(
                    f"surefoot cannot be imported on a node of the Ray cluster ({_reason(error)}); install it there"
                ) from None
            raise Lost(_reason(error)) from None
        except errors.RayError as error:
            raise Lost(_reason(error)) from None

    def kill(self, runner: object) -> None:
        self._ray.kill(runner)

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


def _unconnected(error: Exception) -> UsageError:
    why = one_line(str(error), 300)
    return UsageError(f"cannot connect to a Ray cluster: {why} (`ray start --head` starts one)")


def _reason(error: Exception) -> str:
    """The last line that says something; Ray's messages are long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__, 200)
