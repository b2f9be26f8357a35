"""Which metrics the page shows as instruments, in which order, with what they mean and where they are healthy."""

from __future__ import annotations

from collections.abc import Iterable

from surefoot.analysis.instruments import INSTRUMENTS, instrument_of

ORDER = {instrument.name: index for index, instrument in enumerate(INSTRUMENTS)}
# Other metrics of an update to show beside the instruments; docs/metrics.md explains them.
OTHERS = (
    "entropy",
    "clip_fraction",
    "approx_kl",
    "ratio_error",
    "policy_loss",
    "value_loss",
    "epochs",
    "learning_rate",
)


def described(names: Iterable[str]) -> list[dict[str, object]]:
    """Every metric: whether it is an instrument, its meaning and its healthy range where they are known."""
    return [_described(name) for name in sorted(names, key=_place)]


def _place(name: str) -> tuple[int, str]:
    known = instrument_of(name)
    if known is not None:
        return ORDER[known.name], name
    return len(ORDER) + (OTHERS.index(name) if name in OTHERS else len(OTHERS)), name


def _described(name: str) -> dict[str, object]:
    known = instrument_of(name)
    if known is None:
        return {"name": name, "instrument": name in OTHERS, "healthy": None, "meaning": "", "range": ""}
    bounded = known.low is not None or known.high is not None
    return {
        "name": name,
        "instrument": True,
        "healthy": [known.low, known.high] if bounded else None,
        "meaning": known.meaning,
        "range": known.healthy if bounded else "",
    }
