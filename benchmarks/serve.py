"""How many requests `surefoot serve` answers on one core, and how long each takes.

    python benchmarks/serve.py [--seconds 10] [--rounds 3] [--rate 1000]

A policy of two layers of 64 units on CartPole is served by one process, on a core of its own if the system allows it;
the client runs on the others, over connections that stay open. *Closed*: each connection asks again as soon as it has
its answer, which gives the most that the server can do. *At a rate*: requests are due at fixed times, whether or not
earlier ones were answered, and a request's time counts from when it was due, so that a slow server cannot hide.
"""

from __future__ import annotations

import argparse
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np

BODY = b'{"observation":[0.01,-0.02,0.03,0.04]}'
SHORT = ["--preset=none", "--total-steps=1024", "--eval-episodes=0", "--seed=0", "--hidden-sizes", "64", "64"]


def request(port: int) -> bytes:
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    return head.encode() + BODY


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def take_answer(connection: socket.socket) -> None:
    """Answers are smaller than a packet; anything but a 200 ends the measurement."""
    got = b""
    while b"}" not in got:
        part = connection.recv(4096)
        if not part:
            raise SystemExit("the server has closed the connection")
        got += part
    if not got.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"refused: {got!r}")


def closed(port: int, connections: int, seconds: float) -> dict[str, float]:
    """Every connection asks as fast as it is answered."""
    text, took = request(port), []
    with selectors.DefaultSelector() as waiting:
        sent = {}
        for _ in range(connections):
            one = connect(port)
            waiting.register(one, selectors.EVENT_READ)
            one.sendall(text)
            sent[one] = perf_counter()
        begin = perf_counter()
        while perf_counter() - begin < seconds:
            for key, _ in waiting.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                take_answer(one)
                took.append(perf_counter() - sent[one])
                sent[one] = perf_counter()
                one.sendall(text)
        lasted = perf_counter() - begin
        for one in sent:
            one.close()
    return summary(took, lasted)


def at_a_rate(port: int, connections: int, seconds: float, rate: float) -> dict[str, float]:
    """Requests are due every 1/rate seconds; one that finds no free connection waits for it, and that time counts."""
    text, took = request(port), []
    free = deque(connect(port) for _ in range(connections))
    asked: dict[socket.socket, float] = {}
    due: deque[float] = deque()
    with selectors.DefaultSelector() as waiting:
        for one in free:
            waiting.register(one, selectors.EVENT_READ)
        begin, number, total = perf_counter(), 0, int(seconds * rate)
        while len(took) < total:
            now = perf_counter()
            while number < total and begin + number / rate <= now:
                due.append(begin + number / rate)
                number += 1
            while due and free:
                one = free.popleft()
                asked[one] = due.popleft()
                one.sendall(text)
            pause = 0.0 if number == total else max(0.0, begin + number / rate - perf_counter())
            for key, _ in waiting.select(pause if number < total else None):
                one = key.fileobj
                assert isinstance(one, socket.socket)
                take_answer(one)
                took.append(perf_counter() - asked.pop(one))
                free.append(one)
        lasted = perf_counter() - begin
        for one in free:
            one.close()
    return summary(took, lasted)


def summary(took: list[float], lasted: float) -> dict[str, float]:
    return {
        "requests": len(took),
        "requests_per_second": len(took) / lasted,
        **{f"p{q}_ms": 1e3 * float(np.quantile(took, q / 100)) for q in (50, 99)},
        "longest_ms": 1e3 * max(took),
    }


def start_server(folder: str) -> tuple[subprocess.Popen[str], int]:
    """(the process, its port). It gets the first core for itself, and this process the others."""
    words = [sys.executable, "-m", "surefoot.cli.main"]
    path = os.pathsep.join([str(machine.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    how: dict[str, Any] = {"cwd": folder, "env": environment, "text": True}
    subprocess.run([*words, "train", "CartPole-v1", *SHORT], check=True, stdout=subprocess.DEVNULL, **how)
    process = subprocess.Popen([*words, "serve", "latest", "--port", "0"], stdout=subprocess.PIPE, **how)
    assert process.stdout is not None
    line = process.stdout.readline()
    if hasattr(os, "sched_setaffinity") and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(process.pid, cores[:1])
        os.sched_setaffinity(0, cores[1:])
    return process, int(line.split(":")[-1].split("/")[0])


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; NaN where the system does not say it like Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1000.0)
    parser.add_argument("--connections", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--out", type=Path, default=machine.RESULTS / "serve.json", metavar="FILE.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "seconds": arguments.seconds, "runs": []}
    table = machine.head("connections", "load", "requests/s", "p50", "p99", "longest", "CPU each")
    with tempfile.TemporaryDirectory() as folder:
        process, port = start_server(folder)
        try:
            closed(port, 1, min(1.0, arguments.seconds))  # to warm up
            for connections in arguments.connections:
                for rate in (None, arguments.rate):
                    for _ in range(arguments.rounds):
                        before = cpu_seconds(process.pid)
                        found = (
                            closed(port, connections, arguments.seconds)
                            if rate is None
                            else at_a_rate(port, connections, arguments.seconds, rate)
                        )
                        cpu = 1e6 * (cpu_seconds(process.pid) - before) / found["requests"]
                        found = {"connections": connections, "rate": rate, **found, "cpu_us_per_request": cpu}
                        result["runs"].append(found)
                        load = "closed" if rate is None else f"{rate:g}/s"
                        times = [f"{found[name]:.2f} ms" for name in ("p50_ms", "p99_ms", "longest_ms")]
                        answered = f"{found['requests_per_second']:,.0f}"
                        table.append(machine.row(connections, load, answered, *times, f"{cpu:.0f} µs"))
                        print(table[-1], flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    machine.write(result, table, arguments.out)


if __name__ == "__main__":
    main()
