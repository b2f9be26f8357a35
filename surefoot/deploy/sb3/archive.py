"""Reads what Stable-Baselines3's `model.save` wrote, without executing anything in it.

The zip has a JSON file in which most objects are pickles with a readable description beside them, and the weights as
PyTorch saves them. Only the readable parts are used. The weights go through PyTorch's `weights_only` reader, which
knows tensors and refuses every other object.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from surefoot.deploy.weights import Weights
from surefoot.runs.files import BROKEN, open_regular
from surefoot.runs.zips import entries_of, plain, read_entry
from surefoot.schema import ArrayOf, Misfit

if TYPE_CHECKING:
    from surefoot.types import Array

DATA, POLICY, VERSION = "data", "policy.pth", "_stable_baselines3_version"
LARGEST_DATA = 256 * 2**20  # bytes; it holds the last observations of all envs
LARGEST_WEIGHTS = 2 * 2**30  # bytes
LONGEST_VERSION = 100


@dataclass(frozen=True)
class SavedModel:
    """The parts of a saved model that can be read."""

    data: Mapping[str, object]  # settings by name; objects are tables with their readable attributes
    weights: Weights
    shapes: Mapping[str, tuple[int, ...]]  # the shape of each weight
    version: str


def read_model(file: Path) -> SavedModel:
    """Misfit, or one of NO_ZIP, if the file is not such a model."""
    with open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
        entries = entries_of(archive)
        if missing := [name for name in (DATA, POLICY) if name not in entries]:
            raise Misfit(f"it has no {missing[0]}, which every model of Stable-Baselines3 has")
        data = _data(read_entry(archive, entries[DATA], LARGEST_DATA))
        arrays = _arrays(read_entry(archive, entries[POLICY], LARGEST_WEIGHTS))
        version = entries.get(VERSION)
        said = "unknown" if version is None else read_entry(archive, version, LONGEST_VERSION).decode(errors="replace")
    shapes = {name: array.shape for name, array in arrays.items()}
    return SavedModel(data, Weights(arrays), shapes, said.strip())


def _data(content: bytes) -> dict[str, object]:
    try:
        found = json.loads(content)
    except BROKEN as error:
        raise Misfit(f"its {DATA} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise Misfit(f"its {DATA} is not a table")
    return found


def _arrays(content: bytes) -> dict[str, Array]:
    _require_no_bomb(content)
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a forged file makes the reader raise
        said = str(error).strip().partition("\n")[0]
        raise Misfit(f"its {POLICY} cannot be read as tensors only: {said}") from None
    if not isinstance(found, Mapping):
        raise Misfit(f"its {POLICY} is not a table of tensors")
    return {_name(name): _array(name, tensor, len(content)) for name, tensor in found.items()}


def _require_no_bomb(content: bytes) -> None:
    """PyTorch's files are zips, too, which it writes uncompressed. (Older ones are not, and have no compression.)"""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return
    with zipfile.ZipFile(io.BytesIO(content)) as inner:
        entries = entries_of(inner).values()
        if any(plain(entry).compress_type != zipfile.ZIP_STORED for entry in entries):
            raise Misfit(f"its {POLICY} is compressed, which PyTorch does not do")
        if sum(entry.file_size for entry in entries) > len(content):
            raise Misfit(f"its {POLICY} claims to hold more bytes than it has")


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise Misfit(f"its {POLICY} has a tensor whose name is a {type(name).__name__}")
    return name


def _array(name: str, tensor: object, most: int) -> Array:
    """A float32 array. A forged tensor may repeat few bytes as often as it likes, so its size is checked first."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise Misfit(f"{name} in its {POLICY} is not a plain tensor")
    if tensor.is_quantized or not tensor.is_floating_point():
        raise Misfit(f"{name} in its {POLICY} is of {tensor.dtype}, not floats")
    if tensor.numel() * tensor.element_size() > most:
        raise Misfit(f"{name} in its {POLICY} claims to be larger than the file")
    found: Array = tensor.detach().to(torch.float32).contiguous().numpy()
    ArrayOf(None, "float32").check(found, name)
    return found
