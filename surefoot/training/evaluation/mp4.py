"""Writes frames to an mp4 that every player opens: H.264, even sizes. The file is complete or absent."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import SurefootError, UsageError

if TYPE_CHECKING:
    from surefoot.types import Array

UNFINISHED = ".tmp-"
# Players disagree about untagged colours, so tag them. +faststart lets playback start before all is loaded.
ENCODING = (
    "-vf scale=out_color_matrix=bt709:out_range=tv -colorspace bt709 -color_primaries bt709 -color_trc bt709 "
    "-c:v libx264 -preset veryfast -crf 18 -pix_fmt yuv420p -movflags +faststart -f mp4"
)


class Mp4:
    """Pipes frames into ffmpeg. The complete file is at `path` once `finish` has returned; otherwise there is none."""

    def __init__(self, path: Path, fps: float, like: Array) -> None:
        self.path, self.frames = path, 0
        self.height, self.width = (size + size % 2 for size in like.shape[:2])  # yuv420p needs even sizes
        self._beside = f"{UNFINISHED}{os.getpid()}-{token_hex(4)}.mp4"
        source = f"-f rawvideo -pix_fmt rgb24 -s {self.width}x{self.height} -framerate {fps} -i pipe:0 -an"
        command = [_ffmpeg(), *f"-y -loglevel error {source} {ENCODING}".split()]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (no pipe: nobody would empty it)
        self._folder = os.open(path.parent, os.O_RDONLY)  # it may be renamed before we are done
        held = Path(f"/proc/self/fd/{self._folder}")
        command.append(f"file:{(held if held.exists() else path.parent.absolute()) / self._beside}")
        try:
            # In its own session it does not get our Ctrl-C. If we are killed, its input ends, and so does it.
            self._process = subprocess.Popen(
                command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=self._said,
                pass_fds=(self._folder,),
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            os.close(self._folder)
            raise SurefootError(f"{path} cannot be recorded: ffmpeg did not start: {error}") from error
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def __enter__(self) -> Mp4:
        return self

    def write(self, picture: Array) -> None:
        """Write one frame; an odd height or width is padded by repeating the last row or column."""
        below, beside = self.height - picture.shape[0], self.width - picture.shape[1]
        even = np.pad(picture, ((0, below), (0, beside), (0, 0)), mode="edge")
        try:
            self._pipe.write(even.tobytes())  # C order, whatever the env's memory layout
        except OSError:
            raise self._failure() from None
        self.frames += 1

    def finish(self) -> None:
        try:
            self._pipe.close()
        except OSError:
            raise self._failure() from None
        if self._process.wait():
            raise self._failure()
        try:
            os.replace(self._beside, self.path.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            raise SurefootError(f"{self.path} cannot be written: {error}") from error

    def _failure(self) -> SurefootError:
        """ffmpeg's last message, without the memory address in it."""
        status = self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines() or [f"exit status {status}"]
        last = re.sub(r"^\[.*?] ", "", lines[-1])
        return SurefootError(f"{self.path} could not be recorded, ffmpeg failed: {last}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._said.close()
        with suppress(OSError):  # data still in the pipe is lost
            self._pipe.close()
        with suppress(OSError):  # renamed, or never there
            os.unlink(self._beside, dir_fd=self._folder)
        os.close(self._folder)


def sweep(folder: Path) -> None:
    """Remove temporary files of processes that were killed while recording."""
    for rest in folder.glob(f"{UNFINISHED}*.mp4"):
        pid = rest.name.removeprefix(UNFINISHED).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            rest.unlink(missing_ok=True)


def _ffmpeg() -> str:
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:  # the latter: imageio-ffmpeg without its binary
        raise UsageError(f"recording needs ffmpeg: pip install imageio-ffmpeg ({error})") from None
