"""Memory over time: a GRU or an LSTM between the encoder and the MLPs.

Learning runs through the whole rollout, from the memory at its start; memory is reset where an episode begins. The
stretches between resets are batched and run through PyTorch's recurrent kernels at once, instead of step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.backends import cudnn

from surefoot.policies.layers import GRU, LSTM, recurrent
from surefoot.policies.torch_defaults import Shared

if TYPE_CHECKING:
    from surefoot.types import Context

KINDS: dict[str, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}


class Memory(nn.Module):
    """features `[B, F]` → remembered features `[B, H]`. A state is one row, `[n, M]`: h, and c beside it (LSTM)."""

    def __init__(self, kind: str, inputs: int, hidden: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.hidden, self.is_lstm = hidden, kind == "lstm"
        self.size = 2 * hidden if self.is_lstm else hidden  # M
        self.net = recurrent(KINDS[kind], inputs, hidden, generator)

    def orthogonal(self, generator: torch.Generator | None = None) -> None:
        for name, parameter in self.net.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter, generator=generator)
            else:
                nn.init.zeros_(parameter)

    def step(self, features: Tensor, memory: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """One step of n envs: (remembered features, the new state)."""
        return self._run(features[None], memory * ~start[:, None])

    def _run(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Run `[L, n, F]` from the given states; the output is flat, `[L·n, H]`."""
        before = memory[None].contiguous()
        with without_cudnn():
            if self.is_lstm:
                out, (h, c) = self.net(features, tuple(part.contiguous() for part in before.chunk(2, -1)))
                return out.flatten(0, 1), torch.cat([h[0], c[0]], -1)
            out, h = self.net(features, before)
            return out.flatten(0, 1), h[0]

    def forward(self, features: Tensor, context: Context) -> Tensor:
        """Remembered features for B = T·n time-major features; `context` has the memory before them."""
        steps, num_envs = context.start.shape
        memory = context.memory * ~context.start[0][:, None]
        if not bool(context.start[1:].any()):
            return self._run(features.view(steps, num_envs, features.shape[-1]), memory)[0]
        return self._run_stretches(features, context.start, memory)

    def step_by_step(self, features: Tensor, context: Context) -> Tensor:
        """Like `forward`, but decides nothing by looking at the data, which would wait for the device."""
        weights, outputs, memory = list(self.net.parameters()), [], context.memory  # weights in PyTorch's order
        steps = features.view(*context.start.shape, features.shape[-1]).unbind(0)
        for inputs, begins in zip(steps, context.start.unbind(0), strict=True):
            memory = memory * ~begins[:, None]
            if self.is_lstm:
                hidden, cell = torch.lstm_cell(inputs, list(memory.chunk(2, -1)), *weights)
                memory = torch.cat([hidden, cell], -1)
            else:
                hidden = memory = torch.gru_cell(inputs, memory, *weights)
            outputs.append(hidden)
        return torch.cat(outputs)

    def _run_stretches(self, features: Tensor, start: Tensor, memory: Tensor) -> Tensor:
        steps, num_envs = start.shape
        begins = start.clone()
        begins[0] = True
        env, first = begins.t().nonzero(as_tuple=True)  # one entry per stretch, by env and then by time
        number = (begins.t().flatten().cumsum(0) - 1).view(num_envs, steps).t()  # [T, n]: which stretch
        time = torch.arange(steps, dtype=torch.int64, device=start.device)[:, None]
        within = time - first[number]  # [T, n]: how far inside
        longest = int(within.max()) + 1
        ahead = torch.arange(longest, dtype=torch.int64, device=start.device)[:, None]
        rows = (first + ahead).clamp(max=steps - 1) * num_envs + env  # [L, S]; beyond a stretch's end, unused
        before = memory[env] * (first == 0)[:, None]
        out, _ = self._run(features[rows], before)
        return out[(within * len(env) + number).flatten()]


def without_cudnn() -> AbstractContextManager[None]:
    """PyTorch's own kernels on a GPU.

    cuDNN's recurrent kernels cannot be differentiated twice (NPG, TRPO), have no gradient after `eval()`, and need
    their own weight layout, while our weights are views of one vector.
    """
    return _cudnn_off.held()


def _disable_cudnn() -> Callable[[], None]:
    before, cudnn.enabled = cudnn.enabled, False
    return partial(setattr, cudnn, "enabled", before)


_cudnn_off = Shared(_disable_cudnn)
