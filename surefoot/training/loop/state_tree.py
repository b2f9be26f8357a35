"""State as a tree of plain values and arrays, split into JSON and safetensors. No pickle, no code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

TENSOR = "$tensor"  # in the JSON, {"$tensor": name} stands for the array of that name


def split(tree: object, path: str = "") -> tuple[object, dict[str, Tensor]]:
    """(the JSON part, the arrays by path). Floats survive JSON exactly; NumPy arrays come back as tensors."""
    if isinstance(tree, (Tensor, np.ndarray)):
        tensor = torch.from_numpy(np.ascontiguousarray(tree)) if isinstance(tree, np.ndarray) else tree
        return {TENSOR: path}, {path: tensor.detach().cpu().clone().contiguous()}
    if isinstance(tree, Mapping):
        parts = {str(key): split(value, f"{path}.{key}" if path else str(key)) for key, value in tree.items()}
        return {key: plain for key, (plain, _) in parts.items()}, _merge(found for _, found in parts.values())
    if isinstance(tree, (list, tuple)):
        items = [split(value, f"{path}.{index}") for index, value in enumerate(tree)]
        return [plain for plain, _ in items], _merge(found for _, found in items)
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree, {}
    raise TypeError(f"{path}: a {type(tree).__name__} cannot be saved")


def join(plain: object, tensors: Mapping[str, Tensor]) -> object:
    """The tree that `split` took apart."""
    if isinstance(plain, dict):
        if set(plain) == {TENSOR}:
            return tensors[plain[TENSOR]]
        return {key: join(value, tensors) for key, value in plain.items()}
    if isinstance(plain, list):
        return [join(value, tensors) for value in plain]
    return plain


def _merge(parts: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    merged: dict[str, Tensor] = {}
    for part in parts:
        merged.update(part)
    return merged
