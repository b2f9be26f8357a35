"""Disks of a child's own, in a mount namespace that ends with it: small, full, or not to be written."""

import ctypes
import os
import shutil
from pathlib import Path

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
PRIVATE, BIND, READ_ONLY, REMOUNT = 1 << 18 | 1 << 14, 1 << 12, 1, 1 << 5  # MS_PRIVATE | MS_REC, …
PAGE = 4096

libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, kind, flags=0, options=""):
    check(libc.mount(str(source).encode(), str(target).encode(), kind.encode(), flags, options.encode() or None))


def own_mounts():
    """From here on this process mounts for itself only; also somebody who is not root may."""
    user, group = os.getuid(), os.getgid()
    check(libc.unshare(NEW_MOUNTS | (0 if user == 0 else NEW_USERS)))
    if user:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="utf-8")
    mount("none", "/", "", PRIVATE)


def possible():
    """In a child: exit code 0 where mounting is permitted."""
    try:
        own_mounts()
        small_disk(Path("probe"), 16 * PAGE)
    except OSError:
        return 1
    return 0


def small_disk(path, size):
    """A new empty disk of so many bytes."""
    path.mkdir()
    mount("tmpfs", path, "tmpfs", 0, f"size={size}")


def make_read_only(path):
    mount(path, path, "", BIND)
    mount(path, path, "", BIND | REMOUNT | READ_ONLY)


def free_bytes(disk):
    return shutil.disk_usage(disk).free


def fill(disk, leave=0):
    """Put something large on the disk, so that `leave` bytes are left (or more, as they were)."""
    handle = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while free_bytes(disk) > leave:
        os.write(handle, bytes(PAGE))
    os.close(handle)


def empty(disk):
    (disk / "ballast").unlink()
