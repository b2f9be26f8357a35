"""A Slurm cluster of one node on loopback, from Debian's packages slurm-wlm and munge, in a folder of its own."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=20
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""  # cred_expire: also the delay of a job that is queued again


def why_not():
    """Why there is no cluster here; None if there may be one."""
    missing = [name for name in (*DAEMONS, "sbatch") if program(name) is None]
    return f"needs Slurm (apt-get install slurm-wlm munge): no {', '.join(missing)}" if missing else None


def program(name):
    """Where it is; Debian keeps daemons where users do not look."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def version():
    """`slurm-wlm 22.05.8`. The daemon tells it without a cluster, unlike the commands."""
    return said([program("slurmd"), "-V"], {}).strip()


@contextmanager
def one_node(folder, cpus=3):
    """Runs the daemons inside, and yields the variables with which Slurm's commands find them."""
    folder = Path(folder)
    for place in ("state", "spool"):
        (folder / place).mkdir(parents=True)
    folder.chmod(0o755)  # munged refuses a folder that others can write to
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    controller, node = free_ports()
    config = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    config.write_text(
        CONFIG.format(host=host, folder=folder, controller=controller, node=node, user=getpass.getuser(), cpus=cpus),
        encoding="utf-8",
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n", encoding="utf-8")
    variables = {"SLURM_CONF": str(config)}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    with ExitStack() as daemons:
        start(daemons, folder, "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge)
        until((folder / "munge.socket").exists)
        start(daemons, folder, "slurmctld", "-D", "-f", str(config))
        start(daemons, folder, "slurmd", "-D", "-f", str(config))
        until(lambda: "idle" in said(["sinfo", "--noheader", "--format=%T"], variables), folder)
        try:
            yield variables
        finally:  # jobs outlive the daemons
            said(["scancel", f"--user={getpass.getuser()}"], variables)
            until(lambda: not said(["squeue", "--noheader"], variables), folder)


def start(daemons, folder, name, *arguments):
    with_us = ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []  # however we end
    with open(folder / f"{name}.log", "ab") as log:
        command = [*with_us, program(name), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    daemons.callback(end, process)


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def said(command, variables):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)
    return done.stdout


def free_ports():
    """Two ports that nothing listens on."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def until(condition, folder=None, seconds=120.0):
    """Wait for it; the deadline only tells a hang from slowness."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    logs = "" if folder is None else "\n".join(log.read_text(errors="replace") for log in folder.glob("*.log"))
    raise AssertionError(f"it never happened\n{logs}")
