"""Runs all checks and gathers their results in one report."""

from __future__ import annotations

import re
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from surefoot.doctor.case import SEED, Case, reset, step
from surefoot.doctor.play import play
from surefoot.doctor.replay import replay
from surefoot.doctor.report import LEVELS, Level, Report
from surefoot.doctor.speed import measure_speed
from surefoot.envs.checks import check_action_space
from surefoot.envs.forks import Original
from surefoot.envs.masks import MaskReader, has_method, mask_source
from surefoot.envs.seeds import episode_seed
from surefoot.errors import EnvError, SurefootError, UsageError, user_errors
from surefoot.spaces.layout import MASK, Layout

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig
    from surefoot.envs.make import Factory
    from surefoot.types import GymEnv, Info

MAKING = "making the env"
OURS = (str(Path(__file__).parents[2]), str(Path(gym.__file__).parent))


def examine(config: EnvConfig, *, episodes: int = 20, factory: Factory | None = None) -> Report:
    """Check an env. UsageError if there is no such env."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        case, crashes = Case(config, factory), Crashes()
        if crashes.guard(MAKING, case.look):
            crashes.guard("reset and step", lambda: _contract(case))
            crashes.guard("spaces", lambda: _spaces(case))
            crashes.guard("Gymnasium's checker", lambda: _gymnasium(case))
            crashes.guard("random play", lambda: play(case, episodes))
            crashes.guard("determinism", lambda: replay(case))
            crashes.guard("rendering", lambda: _rendering(case))
            faults = any(fault.level == "error" for fault, _ in case.seen.values())
            if case.report.ok and not crashes.found and not faults:
                crashes.guard("speed", lambda: measure_speed(case))
    return _close(case, crashes, [str(one.message) for one in caught])


class Crashes:
    """Exceptions raised by checks."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[str]] = {}  # (what, where) -> the checks that it stopped

    def guard(self, name: str, check: Callable[[], None]) -> bool:
        """Run one check; returns whether it finished."""
        try:
            with Original():
                check()
        except user_errors() as error:
            if isinstance(error, UsageError) and name == MAKING:  # no such env, or its package is missing
                raise
            cause = error.__cause__ if isinstance(error, EnvError) and error.__cause__ is not None else error
            known = isinstance(cause, SurefootError)
            what = str(cause) if known else f"{type(cause).__name__}: {cause}"
            self.found.setdefault((what, "" if known else _user_line(cause)), []).append(name)
            return False
        return True


def _close(case: Case, crashes: Crashes, warned: list[str]) -> Report:
    for (what, where), names in crashes.found.items():
        case.find("error", f"{', '.join(names)}: {what}", f"see {where}" if where else "")
    for found, times in case.seen.values():
        more = f" (and {times - 1:,} more like it)" if times > 1 else ""
        case.find(found.level, found.what + more, found.advice)
    _add_warnings(case, warned)
    case.report.findings.sort(key=lambda finding: LEVELS.index(finding.level))
    case.report.flags = [f"{flag} {value}".rstrip() for flag, value in case.wanted.items()]
    return case.report


def _add_warnings(case: Case, warned: list[str]) -> None:
    """Add warnings of the env, Gymnasium and its checker, each once, unless the findings say it better."""
    texts = {re.sub(r"\x1b\[[0-9;]*m", "", text).removeprefix("WARN: ") for text in warned}
    said = ("infinity. This is probably too", "different from the unwrapped version")
    for text in sorted(texts):
        if not any(part in text for part in said):
            level: Level = "note" if "we recommend" in text else "warning"
            case.find(level, f"Python or Gymnasium warns: {text.partition(' See https:')[0]}")


def _contract(case: Case) -> None:
    with closing(case.make()) as env:
        obs, info = reset(env, episode_seed(SEED, 0, 0))
        case.masks = _find_masks(case, env, info)
        env.action_space.seed(SEED)
        step(env, case.action(env, obs, info, np.random.default_rng(SEED)))


def _find_masks(case: Case, env: GymEnv, info: Info) -> MaskReader:
    source = mask_source(case.observation_space, method=lambda: has_method(env), in_info=lambda: MASK in info)
    masks = MaskReader(case.action_space, source)
    if source is not None and masks.source is None:
        case.find("warning", f"there is an action mask ({source}), but {case.action_space} has nothing to mask")
    elif source is not None:
        place = {
            "observation": f"the observation's '{MASK}'",
            "method": "action_masks()",
            "info": f"info['{MASK}']",
        }
        case.find("note", f"action masks: from {place[source]}, {masks.size} entries")
    return masks


def _spaces(case: Case) -> None:
    for what, space, lines in (
        ("observation", case.observation_space, case.report.observation),
        ("action", case.action_space, case.report.action),
    ):
        try:
            if what == "action":
                check_action_space(space)
            masked = case.masks.size if what == "observation" else 0
            layout = Layout(space, masked)
        except UsageError as error:
            lines.append(str(space))
            case.find("error", f"the {what} space is not supported: {error}")
            continue
        for leaf in layout.leaves:
            name = f"{leaf.path}: " if leaf.path else ""
            choices = f" of {'×'.join(map(str, leaf.sizes[:8]))} choices" if leaf.sizes else ""
            bounds = f" in [{leaf.low:g}, {leaf.high:g}]" if leaf.kind in ("vector", "image") else ""
            lines.append(f"{name}{leaf.kind} {leaf.shape} {leaf.dtype}{choices}{bounds}")


def _gymnasium(case: Case) -> None:
    if case.masks.source is not None:
        return  # the checker ignores masks, and would blame the env for its handling of illegal actions
    with closing(case.make()) as env:
        try:
            check_env(env.unwrapped, skip_render_check=True)
        except user_errors() as error:
            # The checker's own assertions need not prevent training; exceptions from the env are the env's fault.
            if "env_checker" not in traceback.extract_tb(error.__traceback__)[-1].filename:
                raise
            case.find("warning", f"Gymnasium's checker objects: {error}")


def _rendering(case: Case) -> None:
    if "rgb_array" in (case.metadata.get("render_modes") or ()):
        case.find("note", "rendering: rgb_array is declared, so `surefoot video` can record it")
    else:
        advice = "add it to metadata['render_modes'] and render() for `surefoot video`"
        case.find("note", "rendering: rgb_array is not declared", advice)


def _user_line(error: BaseException) -> str:
    """The innermost line of the traceback in the user's code: `file:line, in name: code`."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(OURS)]
    frame = (theirs or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
