"""Drawing where there is no display."""

from __future__ import annotations

import os
import sys
from ctypes.util import find_library


def go_headless() -> None:
    """Without a display, let SDL and MuJoCo draw without one. Some envs decide when imported: call it early."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        if find_library("EGL"):  # told to use an EGL that is not there, MuJoCo could not even be imported
            os.environ.setdefault("MUJOCO_GL", "egl")
