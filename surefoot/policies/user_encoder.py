"""Wraps a user's own encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import UsageError, user_errors
from surefoot.policies.encoders import flat_rows
from surefoot.policies.torch_defaults import global_draws, usual_defaults

if TYPE_CHECKING:
    from surefoot.spaces.layout import Layout


class UserEncoder(Protocol):
    """A user's own encoder: an `nn.Module` whose class is called with the Layout.

    `parts` maps each leaf's path to its values `[B, *leaf.shape]`: float32, vectors normalised as the settings say,
    choices as whole numbers from 0, images unscaled; an observation that is a single image keeps its dtype. The path of
    a space that is no Dict or Tuple is "".
    """

    size: int  # features

    def __call__(self, parts: dict[str, Tensor]) -> Tensor:
        """Features `[B, size]`, float32."""


EncoderClass: TypeAlias = "Callable[[Layout], nn.Module]"  # or any function that makes one


class CustomEncoder(nn.Module):
    """A `UserEncoder` used like an `Encoder`, first tried on two rows of zeros. It initialises its own weights."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        name = type(module).__name__
        if not isinstance(module, nn.Module):
            raise UsageError(f"the encoder {name} must be a torch.nn.Module")
        size = getattr(module, "size", None)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise UsageError(f"the encoder {name} must say how many features it gives: size, an int ≥ 1, not {size!r}")
        self.module, self.layout, self.size = module, layout, size
        self._try(name)

    @classmethod
    def make(cls, encoder: EncoderClass, layout: Layout, generator: torch.Generator | None = None) -> CustomEncoder:
        """Build it from the user's class, which draws from PyTorch's global generator: that continues `generator`."""
        with global_draws(generator), usual_defaults(torch.device("cpu")):
            return cls._make(encoder, layout)

    @classmethod
    def _make(cls, encoder: EncoderClass, layout: Layout) -> CustomEncoder:
        try:
            module = encoder(layout)
        except user_errors() as error:
            name = getattr(encoder, "__name__", type(encoder).__name__)
            raise UsageError(
                f"the encoder {name} could not be made: {type(error).__name__}: {error}. "
                "It is called with one argument, the Layout of the observation"
            ) from error
        return cls(module, layout)

    def _try(self, name: str) -> None:
        image = self.layout.plain and self.layout.leaves[0].kind == "image"
        rows = torch.from_numpy(np.zeros((2, *self.layout.shape), self.layout.dtype if image else np.float32))
        modes = {module: module.training for module in self.module.modules()}
        self.module.eval()  # the zeros must not affect a batch norm
        try:
            with torch.no_grad():
                features = self.module(self.layout.parts(rows))
        except user_errors() as error:
            paths = ", ".join(f"'{leaf.path}' {leaf.shape}" for leaf in self.layout.leaves)
            raise UsageError(
                f"the encoder {name} failed on two observations of zeros with {type(error).__name__}: {error}. "
                f"Its forward takes a dict with one batch for each of: {paths}"
            ) from error
        finally:
            for module, training in modes.items():
                module.training = training
        if not isinstance(features, Tensor):
            raise UsageError(f"the encoder {name} must return a tensor, not {type(features).__name__}")
        if features.shape != (2, self.size):
            raise UsageError(
                f"the encoder {name} says size={self.size}, so 2 observations must give the shape (2, {self.size}); "
                f"they gave {tuple(features.shape)}"
            )
        if features.dtype != torch.float32:
            raise UsageError(f"the encoder {name} must return torch.float32, not {features.dtype}")

    def forward(self, rows: Tensor) -> Tensor:
        flat, lead = flat_rows(rows, self.layout)
        with usual_defaults(rows.device):
            features: Tensor = self.module(self.layout.parts(flat))
        return features.reshape(*lead, self.size)

    def orthogonal(self, generator: torch.Generator | None = None) -> None:
        """Nothing to do: the module's class has initialised its weights."""

    def describe(self) -> list[str]:
        names = ", ".join(leaf.name for leaf in self.layout.leaves)
        return [f"{names}: {type(self.module).__name__} → {self.size}"]
