"""Episodes of agents as an mp4 that every player opens: H.264, one panel per agent, pixels as the env drew them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surefoot.engine.torch.threads import torch_threads
from surefoot.errors import EnvError, SurefootError, UsageError
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import (
    Abandoned,
    EvaluationEpisode,
    Seat,
    act,
    call_env,
    episode_limit,
    evaluation_agent,
)
from surefoot.training.evaluation.mp4 import Mp4, sweep
from surefoot.training.reports.progress import as_return

if TYPE_CHECKING:
    import gymnasium as gym

    from surefoot.types import Array

DEFAULT_FPS = 30.0  # of an env that does not say
PAPER, INK, FAINT = (32, 36, 44), (240, 242, 246), (140, 146, 158)  # colours of the caption
_one_at_a_time = threading.Lock()  # an env that is closed may take pygame down under the feet of another thread


@dataclass(frozen=True)
class Recording:
    """What was recorded; returns are undiscounted sums of the env's own rewards, as in an Evaluation."""

    path: Path
    frames: int
    width: int
    height: int
    fps: float
    returns: dict[str, list[float]]  # label -> return of each episode


def go_headless() -> None:
    """Without a display, let SDL and MuJoCo draw without one. Some envs decide when imported: call it early."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
        if find_library("EGL"):  # told to use an EGL that is not there, MuJoCo could not even be imported
            os.environ.setdefault("MUJOCO_GL", "egl")


def record(
    agents: Mapping[str, Agent],
    make: Callable[[], gym.Env[Any, Any]],
    path: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    abandon: Callable[[], bool] = lambda: False,
) -> Recording | None:
    """Play the episodes of an evaluation with every agent and write them to `path`; None where `abandon()` said so.

    `make` returns an env with render_mode="rgb_array". Several agents play the same episodes side by side.
    """
    go_headless()
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")  # its banner would go to our stdout
    if not agents or episodes < 1:
        raise UsageError(f"nothing to record: {len(agents)} agents, {episodes} episodes; give at least one of each")
    if path.suffix.lower() != ".mp4" or path.is_dir():
        raise UsageError(f"a recording is one mp4 file; {path} is not a name for that")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
    except OSError as error:
        raise SurefootError(f"{path} cannot be written: {error.strerror}") from None
    with _one_at_a_time, torch_threads(1), ExitStack() as leaving:
        panels: list[_Panel] = []
        for index, (label, agent) in enumerate(agents.items()):
            env = EvaluationEpisode(make(), seed, index)
            leaving.callback(call_env, "recording", env, "close")
            _require_rgb_array(env)
            panels.append(_Panel(label, evaluation_agent(agent, seed), env, deterministic))
        fps = float(panels[0].env.metadata.get("render_fps") or DEFAULT_FPS)
        limit = episode_limit(panels[0].env, max_steps)
        video: Mp4 | None = None
        try:
            for picture in _play(panels, episodes, limit, abandon):
                # The first picture says how large the video is.
                video = video or leaving.enter_context(Mp4(path, fps, picture))
                video.write(picture)
        except Abandoned:
            return None
        assert video is not None
        video.finish()
    returns = {panel.label: panel.returns for panel in panels}
    return Recording(path, video.frames, video.width, video.height, fps, returns)


@dataclass
class _Panel:
    """One agent in one env, and what is seen of it."""

    label: str
    agent: Agent
    env: EvaluationEpisode
    deterministic: bool
    seat: Seat = field(init=False)
    frame: Array = field(init=False)  # [H, W, 3] uint8
    open: bool = False  # the episode goes on
    held: bool = False  # the last frame of an ended one is on show, dimmed
    returns: list[float] = field(default_factory=list)

    def reset(self) -> None:
        self.seat = Seat(self.agent, self.env, len(self.returns), "recording")
        self.returns.append(0.0)
        self.open, self.held = True, False
        self.frame = _render(self.env)

    def step(self, limit: int) -> None:
        (action,) = act(self.agent, [self.seat], self.deterministic)
        reward, over = self.seat.step(action)
        self.returns[-1] += reward
        self.open = not (over or self.env.steps >= limit)
        self.frame = _render(self.env)

    def hold(self) -> None:
        if not self.held:
            self.frame, self.held = self.frame // 2, True


def _play(panels: list[_Panel], episodes: int, limit: int, abandon: Callable[[], bool]) -> Iterator[Array]:
    """The pictures of the video. An episode lasts as long as its longest panel."""
    shape: tuple[int, ...] = ()
    for _ in range(episodes):
        for panel in panels:
            panel.reset()
        shape = shape or panels[0].frame.shape
        yield _picture(panels, shape)
        while any(panel.open for panel in panels):
            for panel in panels:
                if not panel.open:
                    panel.hold()
                    continue
                if abandon():
                    raise Abandoned
                panel.step(limit)
            yield _picture(panels, shape)


def _picture(panels: list[_Panel], shape: tuple[int, ...]) -> Array:
    for panel in panels:
        if panel.frame.shape != shape:
            (height, width, _), (before, wide, _) = panel.frame.shape, shape
            raise EnvError(f"{panel.env} drew {width}×{height} after {wide}×{before}; a recording has one size")
    if len(panels) == 1:
        return panels[0].frame
    return np.concatenate([np.concatenate([*_caption(panel), panel.frame]) for panel in panels], axis=1)


def _caption(panel: _Panel) -> list[Array]:
    """The strip above a panel with its label and the return so far; nothing where there is no pygame."""
    try:
        import pygame.font
        import pygame.surfarray

        pygame.font.init()  # each time: an env that is closed may take pygame down
    except (ImportError, NotImplementedError):  # the latter: a pygame that was built without fonts
        return []
    width = panel.frame.shape[1]
    size = min(max(width // 20, 14), 48)
    font, left = pygame.font.Font(None, size), size // 2
    strip = pygame.Surface((width, size // 2 * 3))
    strip.fill(PAPER)
    for text in (panel.label, f"return {as_return(panel.returns[-1])}"):
        drawn = font.render(text, True, FAINT if panel.held else INK, PAPER)
        strip.blit(drawn, (left, (strip.get_height() - drawn.get_height() + size // 5) // 2))
        left += drawn.get_width() + size
    return [pygame.surfarray.array3d(strip).swapaxes(0, 1)]


def _render(env: EvaluationEpisode) -> Array:
    """The env's picture now, [H, W, 3]."""
    drawn = call_env("recording", env, "render")
    if isinstance(drawn, np.ndarray):
        frame: Array = np.stack([drawn] * 3, axis=-1) if drawn.ndim == 2 else drawn  # greyscale has no channels
        if frame.ndim == 3 and frame.shape[-1] == 3 and frame.dtype == np.uint8 and frame.size:
            return frame
        what = f"an array of {drawn.dtype} and shape {drawn.shape}"
    elif isinstance(drawn, list):
        what = "a list (leave out the wrapper that collects frames)"
    else:
        what = "nothing" if drawn is None else f"a {type(drawn).__name__}"
    raise EnvError(
        f"render of {env} returned {what}; a recording needs one array of uint8 and shape (H, W, 3) ({_modes(env)})"
    )


def _require_rgb_array(env: EvaluationEpisode) -> None:
    if env.render_mode != "rgb_array":
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        raise UsageError(
            f"{name} has render_mode={env.render_mode!r}; to be recorded it must take render_mode='rgb_array', keep it "
            f"and return a picture from render() ({_modes(env)})"
        )


def _modes(env: EvaluationEpisode) -> str:
    return f"its metadata lists the render modes {', '.join(env.metadata.get('render_modes') or ['none'])}"
