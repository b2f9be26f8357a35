"""Recognises a user's own runs: a keyed hash over the code that their settings name.

The key is generated once per user and stored in a file that only they can read. The hash covers the names, their
arguments, and the files that they resolve to on this machine. A run from another person cannot carry a valid hash, and
a modified copy of your own run cannot execute another file of the same name. The contents of the files may change:
they are yours.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from surefoot.user_code import names_code

if TYPE_CHECKING:
    from surefoot.training.config.resolve import Outline

SIGNED = ("env", "env_kwargs", "wrappers", "callbacks", "eval_env", "eval_env_kwargs", "encoder")
SIGNED_IF_CODE = ("algo", "engine")  # built-in values execute nothing, and runs of 0.1.0 were signed without them
KEY_BYTES = 32


def signature_of(config: Outline, code: Iterable[str], *, new: bool = False) -> str | None:
    """The signature of the settings and their `code`; None without a key. `new`: generate a key if there is none."""
    key = _read_key() or (_make_key() if new else None)
    if key is None:
        return None
    settings = config.flat()
    signed = [*SIGNED, *(name for name in SIGNED_IF_CODE if names_code(str(settings[name])))]
    facts = {"settings": [settings[name] for name in signed], "places": [_place(name) for name in code]}
    return hmac.new(key, json.dumps(facts, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _place(name: str) -> str:
    """The file that `file.py:Name`, `module:Name` or a module resolves to here. Imports nothing."""
    source = name.rpartition(":")[0] if ":" in name else name
    if source.endswith(".py"):
        return str(Path(source).resolve())
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(source.partition(".")[0])
        if spec is not None:
            return str(spec.origin or list(spec.submodule_search_locations or ()))
    return ""


def _key_file() -> Path | None:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    else:
        base = os.environ.get("XDG_STATE_HOME", "") or os.path.expanduser("~/.local/state")
    return Path(base) / "surefoot" / "key" if os.path.isabs(base) else None


def _read_key() -> bytes | None:
    """The user's key, if no one else can have read or planted it."""
    file = _key_file()
    if file is None:
        return None
    try:
        with open(file, "rb") as found:
            status, key = os.fstat(found.fileno()), found.read(KEY_BYTES + 1)
    except OSError:
        return None
    private = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
    return key if private and stat.S_ISREG(status.st_mode) and len(key) == KEY_BYTES else None


def _make_key() -> bytes | None:
    """A new key; None if there is an unusable one, or if it cannot be written."""
    file = _key_file()
    if file is None:
        return None
    key, beside = secrets.token_bytes(KEY_BYTES), file.with_name(f".tmp-key-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(beside, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(key)
        try:
            os.link(beside, file)  # must not replace the key of another process that was faster
        finally:
            beside.unlink()
    except (OSError, NotImplementedError):
        pass
    return _read_key()
