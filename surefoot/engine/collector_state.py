"""What the state of a collector must look like in a checkpoint."""

from __future__ import annotations

from typing import Any

from surefoot.schema import ArrayOf, Nothing, Optional, Record, Shape, generator_shape
from surefoot.types import Restorable


def collector_shape(collector: Any) -> Shape:
    """Of a `Collector` or a `TensorCollector`, as large as this one is."""
    normalizer, envs = collector.reward_normalizer, collector.envs
    return Record(
        noise=generator_shape(collector.generator),
        tracker=collector.tracker.state_shape(),
        reward_normalizer=Nothing() if normalizer is None else normalizer.state_shape(),
        last_obs=Optional(_like(collector._obs[0])),
        memory=Nothing() if collector._memory is None else _like(collector._memory),
        start=Optional(_like(collector._start[0])),
        envs=Optional(envs.state_shape()) if isinstance(envs, Restorable) else Nothing(),
    )


def _like(tensor: Any) -> Shape:
    return ArrayOf(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
