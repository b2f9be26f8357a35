"""A sweep that is refused leaves nothing: no folder, no plan, no lock."""

import os
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.sweep import ray_cluster
from surefoot.sweep.folder import SweepFolder, holding

WORDS = ["sweep", "--env=CartPole-v1", "--seeds=0", "--out=some/where"]
TUNE = ["tune", "CartPole-v1", "--total-steps=18k", "--budget=4-trials", "--out=some/where"]


@pytest.fixture
def no_ray(monkeypatch):
    """Ray is installed, but there is no cluster on this machine."""

    def init(**_):
        raise ConnectionError("Could not find any running Ray instance.")

    found = SimpleNamespace(init=init, is_initialized=lambda: False, remote=lambda kind: kind)
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.setattr(ray_cluster, "require_ray", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", "nowhere")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def no_slurm(monkeypatch):
    """Slurm's commands are there, but no controller is."""
    pytest.importorskip("submitit")
    for name in ("sbatch", "srun", "squeue", "scancel"):
        command = Path("bin") / name
        command.parent.mkdir(exist_ok=True)
        command.write_text("#!/bin/sh\necho 'squeue: fatal: no configuration source' >&2; exit 1\n", encoding="utf-8")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{Path('bin').absolute()}:{os.environ['PATH']}")


def everything():
    return {path: path.read_bytes() if path.is_file() else b"" for path in Path().rglob("*")}


def refused(words, capsys):
    """What is said; the folder is as before."""
    before = everything()
    assert main(words) == 2
    said = capsys.readouterr()
    assert everything() == before
    assert not said.out
    return said.err


@pytest.mark.parametrize("words", [WORDS, TUNE], ids=["sweep", "tune"])
def test_a_slurm_cluster_that_does_not_answer(words, no_slurm, capsys):
    said = refused([*words, "--on=slurm"], capsys)
    assert "no Slurm cluster answers here (squeue failed: fatal: no configuration source)" in said
    assert "run it on a login node of a cluster that is up (`sinfo` shows its nodes), or leave out --on slurm" in said


def test_a_machine_without_a_ray_cluster(no_ray, capsys):
    said = refused([*WORDS, "--on=ray", "--address=auto"], capsys)
    assert "there is no Ray cluster on this machine (--address auto); start one with `ray start --head`" in said


def test_a_ray_cluster_that_is_gone_is_not_waited_for(no_ray, capsys, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(Path().absolute()))
    Path("ray").mkdir()
    Path("ray/ray_current_cluster").write_text("127.0.0.1:1", encoding="utf-8")
    for words in ([], ["--address=auto"]):
        said = refused([*WORDS, "--on=ray", *words], capsys)
        assert "the last Ray cluster of this machine, at 127.0.0.1:1, is gone" in said
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")  # which Ray prefers
    assert "there is no Ray cluster at 127.0.0.1:2" in refused([*WORDS, "--on=ray", "--address=auto"], capsys)


def test_a_tune_does_not_leave_its_folder_behind_either(no_ray, capsys):
    pytest.importorskip("optuna")
    assert main([*TUNE, "--on=ray", "--address=auto"]) == 2
    assert "start one with `ray start --head`" in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_folder_that_was_there_stays_as_it_was(no_ray, capsys):
    Path("some/where").mkdir(parents=True)
    refused([*WORDS, "--on=ray", "--address=auto"], capsys)
    assert main([*WORDS, "--total-steps=2k", "--eval-episodes=0", "--quiet"]) == 0
    refused([*WORDS, "--seeds=1", "--on=ray", "--address=auto"], capsys)  # nor does its plan grow


def test_a_program_at_the_address_that_is_not_ray(no_ray, capsys):
    def answer():
        connection, _ = server.accept()
        with connection:
            connection.recv(1_000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        said = refused([*WORDS, "--on=ray", f"--address={address}"], capsys)
        thread.join()
    assert f"there is no Ray cluster at {address}: another program listens there" in said


def test_an_env_that_does_not_exist(capsys):
    assert "NoSuchEnv-v0" in refused([*WORDS, "--env=NoSuchEnv-v0"], capsys)


def test_runs_that_have_begun_are_kept():
    """A cluster may also refuse something later."""
    run = Path("out/CartPole-v1/ppo/s0")

    def begin():
        run.mkdir(parents=True)
        (run / "manifest.json").touch()
        raise UsageError("no more")

    with pytest.raises(UsageError), holding(SweepFolder(Path("out"))):
        begin()
    assert (run / "manifest.json").exists()
    assert Path("out/.lock").exists()
