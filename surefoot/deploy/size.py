"""How large a policy is: what decides whether it is compiled while someone waits, and how often it is tried."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from surefoot.deploy import program as ops


def num_weights(operation: ops.Operation) -> int:
    """All numbers that an operation brings along, whatever it is: a memory's weights count as a layer's do."""
    values = (getattr(operation, field.name) for field in fields(operation))
    return sum(value.size for value in values if isinstance(value, np.ndarray))


def multiplications(program: ops.Program) -> int:
    """For one observation, about."""
    total = 0
    for operation in program.operations:
        if isinstance(operation, ops.Convolution):
            total += operation.weight.size * operation.result[1] * operation.result[2]
        elif isinstance(operation, (ops.Linear, ops.Gru, ops.Lstm)):
            total += num_weights(operation)
    return total
