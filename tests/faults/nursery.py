"""A process that has imported everything once and forks a child for each request: real processes, hundredfold.

Starting Python with PyTorch takes seconds, forking this one takes milliseconds. A child is as good as one from a shell:
a session, an exit status, standard streams (in files), signals and open files of its own.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ORPHANS_COME_TO_ME = 36  # PR_SET_CHILD_SUBREAPER
DIE_WITH_PARENT = (1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Nursery:
    """The test's side: `start` a function of a test module in a child."""

    def __init__(self):
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.faults.nursery"]
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._count = 0
        assert self._read() == "ready"

    def start(self, function, *, cwd=None, **arguments):
        """The function of that name runs in a child, from its module's start; what it returns is the exit code."""
        self._count += 1
        folder = Path(cwd or os.getcwd())
        streams = [str(folder / f".{name}-{self._count}") for name in ("out", "err")]
        pid = self._ask(
            start=[function.__module__, function.__name__], arguments=arguments, cwd=str(folder), streams=streams
        )
        return Child(self, pid, *map(Path, streams))

    def run(self, function, *, timeout=120.0, **arguments):
        """Start and wait."""
        return self.start(function, **arguments).wait(timeout)

    def orphans(self):
        """Processes that an ended child has left behind."""
        return self._ask(orphans=True)

    def close(self):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _ask(self, **request):
        self._process.stdin.write(json.dumps(request, default=str) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self):
        line = self._process.stdout.readline()
        assert line, "the nursery is gone"
        return json.loads(line)


class Child:
    """A started process. After `wait`: `code` as a shell would see it (−9: killed by SIGKILL), `out`, `err`."""

    def __init__(self, nursery, pid, out, err):
        self._nursery, self.pid, self._out, self._err = nursery, pid, out, err
        self.code = None

    @property
    def out(self):
        return self._out.read_text()

    @property
    def err(self):
        return self._err.read_text()

    def wait(self, timeout=120.0):
        if self.code is None:
            self.code = self._nursery._ask(wait=self.pid, timeout=timeout)
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._nursery._ask(wait=self.pid, timeout=10.0)
            raise AssertionError(f"still running after {timeout} s:\n{self.out}\n{self.err}")
        return self

    def alive(self):
        if self.code is None:
            self.code = self._nursery._ask(wait=self.pid, timeout=0.0)
        return self.code is None

    def await_file(self, path, timeout=60.0):
        """Until the child has made this file."""
        limit = time.monotonic() + timeout
        while not path.exists():
            assert self.alive(), f"ended with {self.code} before it made {path}:\n{self.out}\n{self.err}"
            assert time.monotonic() < limit, f"did not make {path} in {timeout} s:\n{self.out}\n{self.err}"
            time.sleep(0.002)

    def send(self, number):
        os.kill(self.pid, number)

    def ended(self, code):
        """Assert how it ended, showing what it said otherwise."""
        assert self.code == code, f"exit code {self.code} instead of {code}:\n{self.out}\n{self.err}"
        return self


def prctl(*arguments):
    ctypes.CDLL(None, use_errno=True).prctl(*arguments, 0, 0, 0)


def serve():
    """The nursery's side."""
    for module in ("pytest", "surefoot.api", "surefoot.cli.train", "tests.faults.runs"):
        import_module(module)
    for module in ("pygame", "gymnasium.envs.classic_control.cartpole"):
        import_module(module)
    gc.freeze()  # what the children share need not be looked through by each of them
    prctl(ORPHANS_COME_TO_ME, 1)
    mine = os.getpid()
    answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                become_child(request)
            answer(pid)
        elif "wait" in request:
            answer(wait_for(request["wait"], request["timeout"]))
        else:
            answer(children_of(mine))


def answer(value):
    print(json.dumps(value), flush=True)


def become_child(request):
    """Never returns."""
    prctl(*DIE_WITH_PARENT)
    os.setsid()
    for number, (name, how) in enumerate(
        [(os.devnull, os.O_RDONLY), *((name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in request["streams"])]
    ):
        handle = os.open(name, how, 0o666)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    os.chdir(request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    module, name = request["start"]
    try:
        code = getattr(import_module(module), name)(**request["arguments"]) or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    # As a script ends, but for the half second that PyTorch takes to be torn down.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_for(pid, timeout):
    """The exit code; none if it still runs."""
    limit = time.monotonic() + timeout
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= limit:
            return None
        time.sleep(0.002)


def children_of(parent):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    serve()
