"""Writes a checkpoint in a thread while training continues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

from surefoot.runs.checkpoints import KEEP, write_checkpoint

if TYPE_CHECKING:
    from surefoot.runs.hold import Hold
    from surefoot.training.loop.state import Snapshot


class Writing:
    """One snapshot being written by a thread. `error`: why it failed, once it is `done`.

    `handles`: the logs, which must be on disk before the checkpoint and are closed afterwards. `lock`: held until then.

    The thread holds only bytes and no part of a trainer, so that a disk that never answers cannot keep the process from
    ending. The disk then has what a kill would leave: the previous checkpoint.
    """

    def __init__(
        self,
        root: Path,
        snapshot: Snapshot,
        *,
        best: bool,
        keep: int | None = KEEP,
        handles: Sequence[int] = (),
        lock: Hold | None = None,
    ) -> None:
        self.root, self.snapshot, self.best, self._keep, self._lock = root, snapshot, best, keep, lock
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._handles = list(handles)
        self._place = self._hold(root)
        self._thread = Thread(target=self._write, name="surefoot-checkpoint", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # cannot start a thread: write it here
            self._write()

    def _hold(self, root: Path) -> Path:
        """The folder through an open descriptor, so that a rename during writing does no harm."""
        if not hasattr(os, "O_DIRECTORY") or not Path("/proc/self/fd").is_dir():
            return root
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # the writer will get the error
            return root
        self._handles.append(folder)
        return Path(f"/proc/self/fd/{folder}")

    def _write(self) -> None:
        begin = perf_counter()
        try:
            # The checkpoint records the length of the logs, so their rows must be on disk before it.
            for handle in self._handles:
                os.fsync(handle)
            snapshot = self.snapshot
            write_checkpoint(
                self._place, snapshot.step, snapshot.files, snapshot.facts, best=self.best, keep=self._keep
            )
        except BaseException as error:  # re-raised by whoever waits
            self.error = error
        finally:
            self.seconds = perf_counter() - begin
            while self._handles:
                os.close(self._handles.pop())
            self._lock = None

    def done(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: forever) and return whether it is done."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()
