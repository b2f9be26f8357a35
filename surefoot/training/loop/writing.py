"""A checkpoint on its way to the disk, beside the training."""

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
    """One snapshot that a thread writes. `error`: why it could not, once it is `done`.

    `handles`: the logs, which are to be on the disk before it and are closed when it is. `lock`: kept until then.

    The thread has bytes and no part of a trainer, so that a disk which never answers cannot keep a process from ending:
    what is on the disk then is what a kill would leave, the checkpoint before it.
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
        except RuntimeError:  # no thread is to be had: write it here
            self._write()

    def _hold(self, root: Path) -> Path:
        """The folder by an open descriptor: a rename in the middle of the writing does not lead it elsewhere."""
        if not hasattr(os, "O_DIRECTORY") or not Path("/proc/self/fd").is_dir():
            return root
        try:
            folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # whoever writes will hear of it
            return root
        self._handles.append(folder)
        return Path(f"/proc/self/fd/{folder}")

    def _write(self) -> None:
        begin = perf_counter()
        try:
            # The checkpoint remembers how long the logs are: their rows must not come to the disk after it.
            for handle in self._handles:
                os.fsync(handle)
            snapshot = self.snapshot
            write_checkpoint(
                self._place, snapshot.step, snapshot.files, snapshot.facts, best=self.best, keep=self._keep
            )
        except BaseException as error:  # raised where it is waited for
            self.error = error
        finally:
            self.seconds = perf_counter() - begin
            while self._handles:
                os.close(self._handles.pop())
            self._lock = None

    def done(self, timeout: float | None = None) -> bool:
        """Wait so long (None: until it is) and say whether it is."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()
