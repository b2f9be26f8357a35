"""Continuing a stored generator, also where it was stored on another kind of device."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.schema import ArrayOf, Shape

STATE_SHAPE: Shape = ArrayOf((None,), "uint8")  # CPU and CUDA generators have states of different lengths


def continued(generator: torch.Generator, state: Tensor) -> torch.Generator:
    """A generator that goes on from `state`: this one, or one on the CPU where the state came from there.

    The state of a GPU's generator means nothing on the CPU. There the run goes on with numbers that follow from it;
    a resume on another device is not exact anyway.
    """
    if len(state) == len(generator.get_state()):
        generator.set_state(state)
        return generator
    on_host = torch.Generator("cpu")
    if len(state) == len(on_host.get_state()):  # the run began on the CPU, or before noise was drawn on the GPU
        on_host.set_state(state)
        return on_host
    return generator.manual_seed(int.from_bytes(bytes(state.tolist()), "little") % 2**63)
