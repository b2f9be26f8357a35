"""Continues a stored generator, even if it was stored on another kind of device."""

from __future__ import annotations

import torch
from torch import Tensor

from surefoot.schema import ArrayOf, Shape

STATE_SHAPE: Shape = ArrayOf((None,), "uint8")  # CPU and CUDA generators have states of different lengths


def continued(generator: torch.Generator, state: Tensor) -> torch.Generator:
    """A generator that continues from `state`: this one, or one on the CPU if the state comes from a CPU.

    The state of a GPU's generator means nothing on the CPU. There, the run continues with a seed derived from it; a
    resume on another device is not exact anyway.
    """
    if len(state) == len(generator.get_state()):
        generator.set_state(state)
        return generator
    on_host = torch.Generator("cpu")
    if len(state) == len(on_host.get_state()):  # the run started on the CPU, or in a version that drew noise there
        on_host.set_state(state)
        return on_host
    return generator.manual_seed(int.from_bytes(bytes(state.tolist()), "little") % 2**63)
