"""Which network interface the processes of a run use among themselves: the one that leads to where they meet.

Left alone, gloo takes the address that the machine's own name resolves to. On many Linux systems that is a loopback
address, which other machines cannot reach, or nothing at all.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address

VARIABLE = "GLOO_SOCKET_IFNAME"  # gloo reads it
ELSEWHERE = "192.0.2.1"  # an address that is never used, so the default route leads there
SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def choose_interface(host: str, *, several_machines: bool) -> None:
    """Tell gloo which interface to use, unless the user has done so or it cannot be known."""
    if os.environ.get(VARIABLE):
        return
    for target in (host, ELSEWHERE) if several_machines else (host,):
        address = _address_towards(target)
        if address is None or (several_machines and ip_address(address).is_loopback):
            continue
        name = _interface_with(address)
        if name is not None:
            os.environ[VARIABLE] = name
            return


def _address_towards(host: str) -> str | None:
    """This machine's IPv4 address on the way to a host. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])
    return None


def _interface_with(address: str) -> str | None:
    try:
        from fcntl import ioctl
    except ImportError:  # Windows
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address, or the system numbers its requests differently
                answer = ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None
