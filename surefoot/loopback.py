"""Servers on this machine: which addresses are its own, which Host headers are, and a port to listen on.

A page on the internet can make a browser send requests to 127.0.0.1, and under its own host name by DNS rebinding. So
a request must name one of our hosts and must not come from another origin.
"""

from __future__ import annotations

import errno
import re
import socket
from ipaddress import ip_address

from surefoot.errors import UsageError

HOST = re.compile(r"(\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:(?P<port>[0-9]{1,5}))?")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Hosts:
    """The names of a server that is bound to `host`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.open = not is_loopback(host)
        self._names = {*LOOPBACK, host.lower()}
        if self.open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def include(self, header: str) -> bool:
        """Whether a Host header names this server.

        The port is ignored: a tunnel changes it. An open server takes any IP address: DNS cannot redirect one.
        """
        parts = HOST.fullmatch(header)
        if parts is None or int(parts["port"] or 0) > 65535:
            return False
        name = (parts["bracketed"] or parts["name"]).lower()
        if name in self._names:
            return True
        if not self.open:
            return False
        try:
            return bool(ip_address(name))
        except ValueError:
            return False


def is_foreign(host: str, origin: str | None, fetch_site: str | None, fetch_mode: str | None) -> bool:
    """Whether another page sent a request, by its headers. A click on a link is not foreign."""
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return True
    return fetch_site in ("cross-site", "same-site") and fetch_mode != "navigate"


def listen(command: str, host: str, port: int) -> socket.socket:
    """A listening socket; UsageError if the port is taken or the host is not one of this machine's.

    Bind first, so that a port in use gives a clear message. `command`: the one to repeat with another port.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sends small packets at once only if the socket says that it is TCP; otherwise each answer takes 40 ms.
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid host name"
        raise UsageError(f"--host {host} is not an address of this machine: {why}") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"--host {host} is not an address of this machine") from None
        if isinstance(error, PermissionError):
            raise UsageError(f"port {port} needs administrator rights; choose one from 1024 on: --port 6007") from None
        raise UsageError(
            f"port {port} on {host} is not available ({error.strerror}); another {command} may be running there: "
            f"open http://{host}:{port}/, or choose another port: {command} --port {port + 1 if port < 65535 else 0}"
        ) from None
    return listening
