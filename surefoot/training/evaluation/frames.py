"""Renders an env's frame, and the caption above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surefoot.errors import EnvError, UsageError
from surefoot.training.evaluation.gym_episodes import EvaluationEpisode, call_env

if TYPE_CHECKING:
    from surefoot.types import Array

PAPER, INK, FAINT = (32, 36, 44), (240, 242, 246), (140, 146, 158)  # colours of the caption


def render(env: EvaluationEpisode) -> Array:
    """The env's current frame, [H, W, 3]."""
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


def require_rgb_array(env: EvaluationEpisode) -> None:
    if env.render_mode != "rgb_array":
        name = env.spec.id if env.spec else type(env.unwrapped).__name__
        raise UsageError(
            f"{name} has render_mode={env.render_mode!r}; to be recorded it must take render_mode='rgb_array', keep it "
            f"and return a picture from render() ({_modes(env)})"
        )


def _modes(env: EvaluationEpisode) -> str:
    return f"its metadata lists the render modes {', '.join(env.metadata.get('render_modes') or ['none'])}"


def caption(width: int, texts: tuple[str, ...], *, faint: bool) -> list[Array]:
    """The caption strip for a frame of this width; empty without pygame."""
    try:
        import pygame.font
        import pygame.surfarray

        pygame.font.init()  # every time: closing an env may shut pygame down
    except (ImportError, NotImplementedError):  # the latter: pygame built without fonts
        return []
    size = min(max(width // 20, 14), 48)
    font, left = pygame.font.Font(None, size), size // 2
    strip = pygame.Surface((width, size // 2 * 3))
    strip.fill(PAPER)
    for text in texts:
        drawn = font.render(text, True, FAINT if faint else INK, PAPER)
        strip.blit(drawn, (left, (strip.get_height() - drawn.get_height() + size // 5) // 2))
        left += drawn.get_width() + size
    return [pygame.surfarray.array3d(strip).swapaxes(0, 1)]
