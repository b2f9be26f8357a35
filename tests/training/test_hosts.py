"""One run on two hosts: network namespaces of this machine, each with a name of its own, and a cable between them."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.test_ranks import SETTINGS, end_of

TIMEOUT = 20  # seconds until a host that does not answer counts as lost
PATIENCE = 400  # seconds for everything else: a busy machine takes minutes to import torch
NAMES = "127.0.0.1 localhost\n10.77.0.1 sf-one\n10.77.0.2 sf-two\n"
TRAIN = ["-m", "surefoot", "train", "CartPole-v1", *SETTINGS.split(), "--total-steps=8000"]
MEETINGS = {
    "c10d": (["--rdzv-backend=c10d", "--rdzv-endpoint=sf-one:29400"],) * 2,
    "static": (["--master-addr=sf-one", "--node-rank=0"], ["--master-addr=sf-one", "--node-rank=1"]),
}
pytestmark = pytest.mark.slow


class Host:
    """A namespace, which exists as long as its first process does."""

    def __init__(self, name, folder):
        self.folder, self.started = folder, []
        folder.mkdir()
        (folder / "hosts").write_text(NAMES, encoding="utf-8")
        script = f"mount --bind {folder}/hosts /etc/hosts && hostname {name} && ip link set lo up && echo up; read end"
        self.first = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-c", script],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.said = self.first.stdout.readline().strip()

    def enter(self, folder, *words):
        return ["nsenter", f"--target={self.first.pid}", "--net", "--uts", "--mount", f"--wd={folder}", *words]

    def run(self, *words):
        subprocess.run(self.enter("/", *words), check=True, capture_output=True)

    def torchrun(self, folder, *words):
        command = self.enter(folder, sys.executable, "-m", "torch.distributed.run", "--nnodes=2", *words)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "SUREFOOT_RANK_TIMEOUT": str(TIMEOUT)}
        with (self.folder / "output").open("w", encoding="utf-8") as out:
            self.started.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment))
        return self.started[-1]

    @property
    def output(self):
        return (self.folder / "output").read_text(encoding="utf-8")

    def close(self):
        for process in self.started:
            process.kill()
            process.wait()
        self.first.communicate("")


@pytest.fixture
def hosts(tmp_path):
    if sys.platform != "linux" or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("two hosts are made of Linux's network namespaces, with unshare, nsenter and ip")
    one, two = (Host(f"sf-{name}", tmp_path / name) for name in ("one", "two"))
    try:
        if (one.said, two.said) != ("up", "up"):
            pytest.skip(f"network namespaces are not permitted here: {one.said}")
        pids = [str(host.first.pid) for host in (one, two)]
        cable = ["ip", "link", "add", "cable", "netns", pids[0], "type", "veth", "peer", "name", "cable", "netns"]
        made = subprocess.run([*cable, pids[1]], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"virtual cables are not permitted here: {made.stderr}")
        for host, address in ((one, "10.77.0.1/24"), (two, "10.77.0.2/24")):
            host.run("ip", "address", "add", address, "dev", "cable")
            host.run("ip", "link", "set", "cable", "up")
        yield one, two
    finally:
        one.close()
        two.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run in two processes of this machine, which nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    command = [sys.executable, *TRAIN, "--ranks=2", "--run-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.05)


@pytest.mark.parametrize(("meeting", "shared"), [("c10d", False), ("static", True)])
def test_a_cut_cable_is_an_error_on_both_and_the_same_command_goes_on(meeting, shared, hosts, whole, tmp_path):
    one, two = hosts
    folders = (tmp_path, tmp_path) if shared else (one.folder, two.folder)

    def start():
        words = ["--rdzv-id=job", *TRAIN, "--run-dir", "cut"]
        return [host.torchrun(folder, *MEETINGS[meeting][index], *words)
                for index, (host, folder) in enumerate(zip(hosts, folders, strict=True))]  # fmt: skip

    def said():
        return f"{one.output}\n\non the other host:\n{two.output}"

    def end(processes):
        wait_for(lambda: all(process.poll() is not None for process in processes), said)
        return [process.returncode for process in processes]

    cut = start()
    wait_for((folders[0] / "cut" / "checkpoints" / "LATEST").exists, said)
    one.run("ip", "link", "set", "cable", "down")
    assert 0 not in end(cut), said()
    assert re.search(rf"no answer from process 1 of 2 \(pid \d+ on sf-two\) for {TIMEOUT} s", one.output), said()
    assert "no contact with sf-one, where the processes of this run meet" in two.output, said()
    one.run("ip", "link", "set", "cable", "up")
    assert end(start()) == [0, 0], said()
    assert re.search(r"resuming cut at step [\d,]+", one.output), said()
    assert end_of(folders[0] / "cut") == end_of(whole)
    assert shared or not (Path(two.folder) / "cut").exists()  # the first process writes, and no other
