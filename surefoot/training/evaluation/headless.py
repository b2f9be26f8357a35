"""Rendering without a display."""

from __future__ import annotations

import os
import sys
from ctypes.util import find_library


def go_headless() -> None:
    """If there is no display, make SDL and MuJoCo render without one. Some envs decide on import: call it early."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        if find_library("EGL"):  # MuJoCo cannot be imported if told to use an EGL that is missing
            os.environ.setdefault("MUJOCO_GL", "egl")
