"""Makes allocations and threads fail: `LD_PRELOAD=FAULTS python -m tests.kernels.failing FAULTS FOLDER`.

`FAULTS` is the compiled `faults.cpp`, `FOLDER` is for runs. Prints as JSON what came of it.
"""

import ctypes
import io
import json
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

from surefoot.cli.main import main
from surefoot.kernels.classic import KINDS, ClassicEnvs, classic_library
from surefoot.kernels.network import Network
from tests.kernels.every_call import CALLS, EveryCall

STEPS = 6  # few, as there are many calls


class Faults:
    def __init__(self, library):
        self.library = ctypes.PyDLL(library)
        self.library.faults_memory.restype = ctypes.c_long
        self.library.faults_memory.argtypes = self.library.faults_threads.argtypes = [ctypes.c_long]

    def call(self, work, count):
        """(what `work()` returns, None for a MemoryError; how many allocations failed), once `count` were good."""
        before = self.library.faults_memory(count)
        try:
            found = work()
        except MemoryError:
            found = None
        return found, self.library.faults_memory(-1) - before

    def sweep(self, work, expected):
        """Fails at each of the first allocations, then at some, until none does: (how often, what was wrong)."""
        count = failures = 0
        while True:
            found, failed = self.call(work, count)
            if (found is None) != (failed > 0):
                return failures, f"{failed} allocations failed after {count}, but it returned {found is not None}"
            if found not in (None, expected) or work() != expected:
                return failures, f"another result after {count} allocations"
            if not failed:
                return failures, None
            failures += 1
            count = count + 1 if count < 8 else 2 * count


def make_envs():
    envs = ClassicEnvs(classic_library(), KINDS["CartPole"], 50, 0)
    envs.close()
    return envs.obs.shape


def failing_calls(faults):
    found = {"envs": faults.sweep(make_envs, (50, 4))}
    for memory, threads in (("none", 2), ("gru", 1), ("gru", 2), ("lstm", 2)):
        expected, calls = EveryCall(memory, 1, STEPS).every(), EveryCall(memory, threads, STEPS)
        make = partial(Network, calls.net.description, threads)
        found[f"{memory} {threads} create"] = faults.sweep(lambda make=make: make().width, 4)
        for name in CALLS:
            found[f"{memory} {threads} {name}"] = faults.sweep(getattr(calls, name), expected[name])
    return found


def run(folder, *words):
    """(exit code, what was said) of a short run on the command line."""
    said = io.StringIO()
    words = ["train", "CartPole-v1", "--seed", "0", "--total-steps", "256", "--rollout-length", "32", *words]
    words += ["--threads", "2", "--eval-episodes", "1", "--run-dir", tempfile.mkdtemp(dir=folder) + "/run"]
    with redirect_stdout(said), redirect_stderr(said):
        code = main(words)
    return code, said.getvalue()


def failing_runs(faults, folder):
    """Runs whose kernels get so many allocations, then none."""
    found = []
    for count in (0, 10, 100, 200, 300):
        faults.library.faults_memory(count)
        found.append(run(folder, "--engine", "native", "--memory", "gru"))
        faults.library.faults_memory(-1)
    return found


def few_threads(faults, folder):
    """A network that asks for four threads and gets two, and runs that ask for two and get one."""
    faults.library.faults_threads(1)
    net = EveryCall("none", 4)
    found = {"net": (net.net.threads, net.every() == EveryCall("none", 1).every())}
    for engine in ("native", "torch"):
        found[engine] = run(folder, "--engine", engine)  # nothing is left for them
    return found


def everything(library, folder):
    faults = Faults(library)
    found = {"calls": failing_calls(faults), "runs": failing_runs(faults, folder)}
    return found | {"threads": few_threads(faults, folder)}


if __name__ == "__main__":
    print(json.dumps(everything(*sys.argv[1:])))
