"""Drawn actions on their way to envs that take tensors: what `ActionModel.to_vector_env` does, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import UsageError
from surefoot.policies.actions import ActionModel
from surefoot.policies.actions.box import BetaBoxActions, BoxActions, TanhBoxActions
from surefoot.policies.actions.composite import CompositeActions
from surefoot.policies.actions.discrete import DiscreteActions, MultiBinaryActions, MultiDiscreteActions

Sender = Callable[[Tensor], Any]


def build_sender(model: ActionModel, device: torch.device) -> Sender:
    """Raw actions `[N, ...]` → the action space's batch as tensors. Constants are put on the device once, here."""
    if isinstance(model, CompositeActions):
        return _composite(model, device)
    if isinstance(model, DiscreteActions):
        start, kind = model.start, torch.int64 if model.env_dtype is None else torch_dtype(model.env_dtype)
        return lambda action: (action + start).to(kind)
    if not isinstance(model, (MultiDiscreteActions, MultiBinaryActions, BoxActions, TanhBoxActions, BetaBoxActions)):
        raise UsageError(f"{type(model).__name__} cannot be sent as tensors; use a vector env of NumPy arrays")
    kind, shape = torch_dtype(model.env_dtype), tuple(model.env_shape)

    def constant(value: Any) -> Tensor:
        return torch.from_numpy(np.array(value)).to(device)

    def shaped(action: Tensor) -> Tensor:
        return action.reshape(-1, *shape)

    if isinstance(model, MultiDiscreteActions):
        first = constant(model.start)
        return lambda action: (shaped(action) + first).to(kind)
    if isinstance(model, MultiBinaryActions):
        return lambda action: shaped(action).to(kind)
    low, high = constant(model.low), constant(model.high)
    if isinstance(model, BoxActions):
        return lambda action: shaped(action).clamp(low, high).to(kind)
    if isinstance(model, TanhBoxActions):
        centre, half = constant(model.centre), constant(model.half)
        return lambda action: (centre + half * shaped(action).double().tanh()).clamp(low, high).to(kind)

    def beta(action: Tensor) -> Tensor:
        x = shaped(action).double()
        return (low * (1.0 - x) + high * x).clamp(low, high).to(kind)

    return beta


def _composite(model: CompositeActions, device: torch.device) -> Sender:
    senders = [build_sender(part, device) for part in model.models]

    def send(action: Tensor) -> Any:
        each = [sender(part.own(action)) for sender, part in zip(senders, model.parts, strict=True)]
        return tuple(each) if model.keys is None else dict(zip(model.keys, each, strict=True))

    return send


def torch_dtype(kind: object) -> torch.dtype:
    dtype: torch.dtype = torch.from_numpy(np.zeros(0, kind)).dtype
    return dtype
