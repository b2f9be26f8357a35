"""`python -m tests.other_system macos|windows COMMAND …`: surefoot's command where a system lacks what Linux has.

Others (the standard library, PyTorch, Gymnasium) keep what they have imported before; what is imported afterwards sees
modules from which the names are missing. (`os.set_blocking` stays: Windows before Python 3.12 has none, but there
`signal.set_wakeup_fd` does not insist on it as it does here.)
"""

import importlib
import platform
import sys
from types import ModuleType

OTHERS = ("torch", "torch._dynamo", "gymnasium", "gymnasium.vector", "gymnasium.wrappers", "rich.live", "rich.table")
OTHERS += ("gymnasium.envs.classic_control.cartpole", "safetensors.torch", "tensorboard.summary", "tempfile", "socket")
OTHERS += ("subprocess", "multiprocessing", "asyncio", "concurrent.futures", "shutil", "sysconfig", "threading")
MACOS = "memfd_create sched_getaffinity sched_setaffinity waitid posix_fallocate pidfd_open"
WINDOWS = (
    "O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK fork forkpty register_at_fork killpg getpgid setsid pread pwrite "
)
WINDOWS += "sysconf sysconf_names getloadavg statvfs fstatvfs geteuid getuid getgid uname fchmod fchown "
WINDOWS += "chown fchdir mkfifo openpty wait3 wait4 WNOHANG posix_spawn fdatasync sync eventfd initgroups nice"
SIGNALS = "SIGHUP SIGUSR1 SIGUSR2 SIGKILL SIGALRM SIGCHLD SIGPIPE SIGQUIT SIGTSTP SIGCONT SIGWINCH SIGXCPU SIGSTOP "
SIGNALS += "pthread_sigmask sigwait pthread_kill setitimer alarm siginterrupt"
ABSENT = {
    "macos": {"os": MACOS},
    "windows": {"os": f"{MACOS} {WINDOWS}", "signal": SIGNALS, "select": "poll epoll"},
}
MODULES = {"macos": (), "windows": ("fcntl", "resource", "termios", "pwd", "grp")}
NAMES = {"macos": "Darwin", "windows": "Windows"}


def become(system):
    """Who imports from here on finds nothing that this system does not have."""
    for name in OTHERS:
        importlib.import_module(name)
    for name in MODULES[system]:
        sys.modules[name] = None
    for name, absent in ABSENT[system].items():
        less = ModuleType(name)
        less.__dict__.update(
            {key: value for key, value in vars(sys.modules[name]).items() if key not in absent.split()}
        )
        sys.modules[name] = less
    platform.system = lambda: NAMES[system]


if __name__ == "__main__":
    become(sys.argv[1])
    from surefoot.cli.main import main

    sys.exit(main(sys.argv[2:]))
