"""examples/slurm/train.sbatch, with commands that only pretend to be Slurm's. `test_slurm_cluster.py` has real ones."""

import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.slurm_cluster import until

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"
COMMANDS = {
    "scontrol": 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$@" >> requeued; fi\n',
    "scancel": 'echo "$@" > cancelled\n',
    "srun": """
echo "$@" > words
for _ in $(seq 1200); do
  if [ -e end ]; then exit "$(cat end)"; fi
  if [ -e cancelled ]; then exit "$(cat saved)"; fi
  sleep 0.05
done
""",
}


@pytest.fixture
def job(monkeypatch):
    """The script as Slurm would run it, on two nodes."""
    for name, text in COMMANDS.items():
        command = Path("bin") / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    slurm = {"JOB_ID": "70123", "JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": "2", "CPUS_PER_TASK": "4"}
    variables = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}}
    variables["PATH"] = f"{Path('bin').absolute()}:{os.environ['PATH']}"
    with subprocess.Popen(["bash", SCRIPT, "CartPole-v1", "--name", "two words"], env=variables) as process:
        try:
            until(lambda: Path("words").exists() and Path("words").read_text(encoding="utf-8"))
            yield process
        finally:
            process.kill()


def test_the_processes_meet_under_the_name_of_the_job(job):
    words = Path("words").read_text(encoding="utf-8").strip()
    Path("end").write_text("0", encoding="utf-8")
    assert job.wait(60) == 0
    assert words == (
        "--cpus-per-task=4 python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 "
        "--rdzv-backend c10d --rdzv-endpoint node1:30123 --rdzv-id 70123 "
        "--max-restarts 3 -m surefoot train CartPole-v1 --name two words"
    )


@pytest.mark.parametrize(("code", "again"), [(1, True), (0, False)])
def test_a_job_whose_time_is_up_saves_and_is_queued_again_unless_it_is_finished(job, code, again):
    Path("saved").write_text(str(code), encoding="utf-8")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == code
    assert Path("cancelled").read_text(encoding="utf-8") == "--signal=TERM 70123\n"
    assert Path("requeued").exists() == again


def test_a_run_that_fails_is_not_queued_again(job):
    Path("end").write_text("4", encoding="utf-8")
    assert job.wait(60) == 4
    assert not Path("requeued").exists()


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_script_is_sound():
    subprocess.run(["shellcheck", SCRIPT], check=True)
