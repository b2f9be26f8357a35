"""Records episodes as an mp4: one panel per agent, pixels exactly as the env drew them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surefoot import notebook
from surefoot.engine.torch_threads import torch_threads
from surefoot.envs.playing import Abandoned, Turn, play
from surefoot.errors import EnvError, SurefootError, UsageError
from surefoot.training.evaluation.actor import PolicyActor
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import step_limit
from surefoot.training.evaluation.frames import caption, render, require_rgb_array
from surefoot.training.evaluation.gym_episodes import GymEpisodes
from surefoot.training.evaluation.headless import go_headless
from surefoot.training.evaluation.mp4 import Mp4, sweep
from surefoot.training.reports.progress import as_return

if TYPE_CHECKING:
    from surefoot.types import Array, GymEnv

DEFAULT_FPS = 30.0  # for envs that do not declare one
_one_at_a_time = threading.Lock()  # closing an env may shut pygame down while another thread uses it


@dataclass(frozen=True)
class Recording:
    """A recorded video; returns are undiscounted sums of the env's own rewards, as in an Evaluation."""

    path: Path
    frames: int
    width: int
    height: int
    fps: float
    returns: dict[str, list[float]]  # label -> return of each episode
    step: int | None = None  # the checkpoint's, if a checkpoint plays

    def _repr_html_(self) -> str:
        """For notebooks: the video itself."""
        return notebook.video(self.path, self.width)


def record(
    agents: Mapping[str, Agent],
    make: Callable[[], GymEnv],
    path: Path,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int | None = None,
    abandon: Callable[[], bool] = lambda: False,
) -> Recording | None:
    """Play the episodes of an evaluation with every agent and record them to `path`; None if `abandon()` returned True.

    `make` returns an env with render_mode="rgb_array". Several agents play the same episodes side by side.
    """
    go_headless()
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")  # its banner would go to our stdout
    if not agents or episodes < 1:
        raise UsageError(f"nothing to record: {len(agents)} agents, {episodes} episodes; give at least one of each")
    _require_place(path)
    with _one_at_a_time, torch_threads(1), ExitStack() as leaving:
        panels: list[_Panel] = []
        for index, (label, agent) in enumerate(agents.items()):
            envs = GymEpisodes(agent, make, [index], seed, "recording")
            leaving.callback(envs.close)
            require_rgb_array(envs.envs[0])
            panels.append(_Panel(label, envs))
        fps = float(panels[0].env.metadata.get("render_fps") or DEFAULT_FPS)
        limit = step_limit(max_steps, panels[0].envs.time_limit)
        for panel in panels:
            actor = PolicyActor(panel.envs.agent, seed, deterministic)
            panel.turns = play(panel.envs, actor, range(episodes), limit=limit, abandon=abandon)
        video: Mp4 | None = None
        try:
            for picture in _pictures(panels, episodes):
                # The first frame determines the size of the video.
                video = video or leaving.enter_context(Mp4(path, fps, picture))
                video.write(picture)
        except Abandoned:
            return None
        assert video is not None
        video.finish()
    returns = {panel.label: panel.returns for panel in panels}
    return Recording(path, video.frames, video.width, video.height, fps, returns)


def _require_place(path: Path) -> None:
    if path.suffix.lower() != ".mp4" or path.is_dir():
        raise UsageError(f"a recording is one mp4 file; {path} is not a name for that")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
    except OSError as error:
        raise SurefootError(f"{path} cannot be written: {error.strerror}") from None


class _Panel:
    """One agent in one env, with its current frame."""

    turns: Iterator[Turn]
    frame: Array  # [H, W, 3] uint8

    def __init__(self, label: str, envs: GymEpisodes) -> None:
        self.label, self.envs, self.env = label, envs, envs.envs[0]
        self.open = False  # the episode is running
        self.held = False  # the episode has ended; its last frame is shown dimmed
        self.returns: list[float] = []

    def advance(self) -> None:
        """Go to the next frame of the running episode, or to the first of the next episode."""
        turn = next(self.turns)
        if turn.step is None:
            self.returns.append(0.0)
            self.held = False
        self.returns[-1], self.open = float(turn.returns[0]), not turn.ended
        self.frame = render(self.env)

    def hold(self) -> None:
        if not self.held:
            self.frame, self.held = self.frame // 2, True


def _pictures(panels: list[_Panel], episodes: int) -> Iterator[Array]:
    """The frames of the video. An episode lasts as long as its longest panel."""
    shape: tuple[int, ...] = ()
    for _ in range(episodes):
        for panel in panels:
            panel.advance()
        shape = shape or panels[0].frame.shape
        yield _beside(panels, shape)
        while any(panel.open for panel in panels):
            for panel in panels:
                if panel.open:
                    panel.advance()
                else:
                    panel.hold()
            yield _beside(panels, shape)


def _beside(panels: list[_Panel], shape: tuple[int, ...]) -> Array:
    """All panels side by side in one frame."""
    for panel in panels:
        if panel.frame.shape != shape:
            (height, width, _), (before, wide, _) = panel.frame.shape, shape
            raise EnvError(f"{panel.env} drew {width}×{height} after {wide}×{before}; a recording has one size")
    if len(panels) == 1:
        return panels[0].frame
    return np.concatenate([np.concatenate([*_caption(panel), panel.frame]) for panel in panels], axis=1)


def _caption(panel: _Panel) -> list[Array]:
    """The panel's label and the return so far."""
    texts = (panel.label, f"return {as_return(panel.returns[-1])}")
    return caption(panel.frame.shape[1], texts, faint=panel.held)
