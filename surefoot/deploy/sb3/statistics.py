"""VecNormalize's statistics, from an .npz file that its user wrote (docs/import.md has the lines)."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from surefoot.envs.rewards import CLIP as REWARD_CLIP
from surefoot.errors import UsageError
from surefoot.math.constants import LEAST_VARIANCE, NORMALIZED_CLIP
from surefoot.runs.files import open_regular
from surefoot.runs.zips import entries_of, read_entry
from surefoot.schema import ArrayOf, Misfit

if TYPE_CHECKING:
    from pathlib import Path

    from surefoot.math.moments import MomentsState
    from surefoot.spaces.rows import RowLayout
    from surefoot.types import Array

LARGEST = 2**27  # bytes of one array
# What reading an array can raise, whatever is in the file.
NO_ARRAY = (ValueError, TypeError, KeyError, EOFError, MemoryError, OverflowError, SyntaxError)


@dataclass(frozen=True)
class Statistics:
    """Moments of each part of an observation, by its key; "" if it has no parts."""

    mean: dict[str, Array]
    var: dict[str, Array]
    count: float
    returns: MomentsState | None = None  # by whose spread rewards are divided; None: they are not
    notes: tuple[str, ...] = ()

    def arrays(self, layout: RowLayout) -> dict[str, Array]:
        """The weights of our normaliser for rows of this layout."""
        mean, var = np.zeros(layout.shape), np.ones(layout.shape)
        for leaf in layout.leaves:
            if leaf.path in self.mean:
                own = slice(None) if layout.plain else leaf.span
                mean[own] = self.mean[leaf.path].reshape(mean[own].shape)
                var[own] = self.var[leaf.path].reshape(var[own].shape)
        return {"normalizer.mean": mean, "normalizer.var": var, "normalizer.count": np.array(self.count)}


def read_statistics(file: Path, layout: RowLayout) -> Statistics:
    """Misfit, or one of NO_ZIP, if the file does not have them. `layout`: the rows that are to be normalised."""
    with open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
        found = {
            name.removesuffix(".npy"): _array(read_entry(archive, entry, LARGEST), name)
            for name, entry in entries_of(archive).items()
        }
    if missing := [name for name in ("clip_obs", "epsilon") if name not in found]:
        raise Misfit(f"it has no {missing[0]}")
    for name in ("clip_obs", "epsilon", "norm_reward", "clip_reward"):
        if name in ("clip_obs", "epsilon") or name in found:
            ArrayOf((), None, 0.0).check(found.get(name), name)
    if (clip := float(found["clip_obs"])) != NORMALIZED_CLIP:
        raise UsageError(f"it clips observations to ±{clip:g}; here they are clipped to ±{NORMALIZED_CLIP:g}")
    vectors = {leaf.path: leaf for leaf in layout.leaves if leaf.kind == "vector"}
    keys = {name.removeprefix("mean:") for name in found if name.startswith("mean:")}
    if keys != set(vectors):
        raise UsageError(f"it normalises {_listed(keys)}; here {_listed(set(vectors))} would be normalised")
    mean, var, counts = {}, {}, []
    for key, leaf in vectors.items():
        for name, shape, low in (("mean", leaf.shape, None), ("var", leaf.shape, 0.0), ("count", (), 0.0)):
            ArrayOf(shape, None, low).check(found.get(f"{name}:{key}"), f"{name}:{key}")
        mean[key] = found[f"mean:{key}"].astype(np.float64)
        var[key] = np.maximum(found[f"var:{key}"].astype(np.float64) + float(found["epsilon"]) - LEAST_VARIANCE, 0.0)
        counts.append(float(found[f"count:{key}"]))
    returns = _returns(found)
    clip = float(found.get("clip_reward", REWARD_CLIP)) if returns is not None else REWARD_CLIP
    notes = () if clip == REWARD_CLIP else (f"rewards were clipped to ±{clip:g}; here to ±{REWARD_CLIP:g}",)
    return Statistics(mean, var, min(counts), returns, notes)


def _returns(found: dict[str, Array]) -> MomentsState | None:
    if not bool(found.get("norm_reward", False)):
        return None
    for name, low in (("count", 0.0), ("mean", None), ("var", 0.0)):
        ArrayOf((), None, low).check(found.get(f"{name}_of_returns"), f"{name}_of_returns")
    count, mean, var = (found[f"{name}_of_returns"].astype(np.float64) for name in ("count", "mean", "var"))
    return {"count": float(count), "mean": mean, "var": var}


def _listed(keys: set[str]) -> str:
    return ", ".join(sorted(repr(key) if key else "the whole observation" for key in keys)) or "nothing"


def _array(content: bytes, name: str) -> Array:
    try:
        found: Array = np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except NO_ARRAY as error:
        raise Misfit(f"its {name} is not an array of numbers: {error}") from None
    return found
