"""The findings of an examination."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

if TYPE_CHECKING:
    from surefoot.envs.config import EnvConfig

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One finding to report to the user."""

    level: Level
    what: str
    advice: str = ""


class Spread(TypedDict):
    min: float
    max: float
    mean: NotRequired[float]
    std: NotRequired[float]
    median: NotRequired[float]
    nonzero: NotRequired[float]  # fraction


class Ends(TypedDict):
    ended: int
    terminated: int
    truncated: int


class Workers(TypedDict):
    number: int
    why: str


Numbers = TypedDict(
    "Numbers",
    {
        "time_limit": int | None,
        "deterministic": bool,
        "exact_resume": bool,
        "observation": dict[str, Spread],
        "reward": Spread,
        "return": Spread,
        "episodes": Ends,
        "length": Spread,
        "steps_per_second": dict[str, float],
        "steps_per_second_together": dict[str, float],
        "workers": Workers,
    },
    total=False,
)


@dataclass
class Report:
    """The findings of an examination. `flags`: recommended flags of `surefoot train`, without those the user typed."""

    env: str
    described: str
    observation: list[str] = field(default_factory=list)
    action: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    numbers: Numbers = field(default_factory=lambda: Numbers())
    flags: list[str] = field(default_factory=list)
    typed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(finding.level == "error" for finding in self.findings)

    @property
    def recommended(self) -> str:
        return " ".join(["surefoot train", quote(self.env), *self.typed, *self.flags])

    def as_dict(self) -> dict[str, object]:
        shown = {key: value for key, value in asdict(self).items() if key != "typed"}
        return {**shown, "ok": self.ok, "recommended": self.recommended}


def typed_flags(config: EnvConfig) -> list[str]:
    """The user's own flags, for the recommended command line."""
    words = []
    if config.env_kwargs:
        words += ["--env-kwargs", quote(json.dumps(config.env_kwargs))]
    if config.wrappers:
        words += ["--wrappers", *map(quote, config.wrappers)]
    if config.max_episode_steps is not None:
        words += ["--max-episode-steps", str(config.max_episode_steps)]
    return words
