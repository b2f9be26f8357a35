"""A scheduler's warning goes on to those children that know what to do with it."""

import os
import signal
import subprocess
import sys

import pytest

from surefoot.cli.forwarding import children, warn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only /proc tells which signals a process handles")
HANDLES = "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(7)); print(flush=True); signal.pause()"
STARTS = "print(flush=True); input()"


def test_a_process_without_a_handler_is_spared():
    started = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for script in (HANDLES, STARTS)
    ]
    for process in started:
        process.stdout.readline()
    assert {process.pid for process in started} <= set(children())
    warn([*(process.pid for process in started), 2**22 + 1], signal.SIGUSR1)
    assert started[0].wait(60) == 7
    assert started[1].poll() is None
    os.kill(started[1].pid, signal.SIGTERM)
    for process in started:
        process.communicate()
