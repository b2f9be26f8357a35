"""Wide layers on a GPU: Triton's kernels (`kernels/fused_wide.py`) against float64, and their time beside cuBLAS'.

    python benchmarks/gpu_layers.py            # at the size of robots' policies
    python benchmarks/gpu_layers.py --tiles    # with tiles of other sizes too, to choose from

`gpu.py` runs the checks as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

ROWS, WIDTHS = 24_576, (48, 512, 256, 128, 12)  # a minibatch of 4096 envs × 24 steps
CLOSE = {3: 1e-5, 2: 1e-3, 1: 3e-2}  # to float64, by the parts of a number in products
NAMES = ("HEIGHT", "WIDTH", "DEPTH", "num_warps", "num_stages")
SIZES = ((64, 128, 32, 4, 3), (128, 128, 32, 8, 3), (64, 64, 32, 4, 3), (64, 64, 64, 4, 2), (64, 128, 32, 4, 2))
SIZES += ((64, 128, 32, 4, 4), (128, 64, 32, 4, 3), (64, 256, 32, 8, 2), (128, 128, 64, 8, 2))
TILES = [dict(zip(NAMES, sizes, strict=True)) for sizes in SIZES]
Layers = list[tuple[Tensor, Tensor]]


def layers_of(widths: tuple[int, ...]) -> Layers:
    torch.manual_seed(0)
    made = [nn.Linear(*sizes).cuda() for sizes in pairwise(widths)]
    return [(layer.weight, layer.bias) for layer in made]


def plain(x: Tensor, layers: Layers) -> Tensor:
    for weight, bias in layers[:-1]:
        x = nn.functional.elu(nn.functional.linear(x, weight, bias))
    return nn.functional.linear(x, *layers[-1])


def fused(x: Tensor, layers: Layers, parts: int = 3) -> Tensor:
    from surefoot.kernels.fused_wide import wide_mlp

    return wide_mlp(x, layers, ["elu"] * (len(layers) - 1) + ["none"], parts)


def rounded(x: Tensor, layers: Layers) -> Tensor:
    from surefoot.kernels.fused_slopes import rounded_mlp

    return rounded_mlp(x, layers, ["elu"] * (len(layers) - 1) + ["none"])


def results(run: Callable[..., Tensor], x: Tensor, layers: Layers, into: Tensor) -> list[Tensor]:
    leaves = [x, *(tensor for layer in layers for tensor in layer)]
    out = run(x, layers)
    return [out.detach(), *torch.autograd.grad(out, leaves, into)]


def check() -> Iterator[tuple[str, Any]]:
    """Results and gradients are float64's, twice the same, and a row's do not depend on its batch."""
    for parts, rows in product((3, 2, 1), (100, 5000, ROWS)):
        layers, x = layers_of(WIDTHS), torch.randn(rows, WIDTHS[0], device="cuda", requires_grad=True)
        into = torch.randn(rows, WIDTHS[-1], device="cuda")

        def run(x: Tensor, layers: Layers, parts: int = parts) -> Tensor:
            return fused(x, layers, parts)

        ours, again = (results(run, x, layers, into) for _ in range(2))
        wide = [
            (weight.detach().double().requires_grad_(), bias.detach().double().requires_grad_())
            for weight, bias in layers
        ]
        exact = results(plain, x.detach().double().requires_grad_(), wide, into.double())
        error = max(float((one - other).norm() / other.norm()) for one, other in zip(ours, exact, strict=True))
        same = all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
        some = slice(rows // 3, rows // 3 + 41)
        alone = torch.equal(fused(x[some].detach(), layers, parts), ours[0][some])
        ok = error < CLOSE[parts] and same and alone
        yield f"{parts} parts, {rows} rows", {"error": error, "twice": same, "alone": alone, "ok": ok}


def milliseconds(run: Callable[..., Tensor]) -> float:
    """Of forward and backward, as a CUDA graph."""
    layers, x = layers_of(WIDTHS), torch.randn(ROWS, WIDTHS[0], device="cuda")
    into = torch.randn(ROWS, WIDTHS[-1], device="cuda")
    leaves = [tensor for layer in layers for tensor in layer]

    def work() -> None:
        torch.autograd.grad(run(x, layers), leaves, into)

    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times = []
    for _ in range(20):
        start.record()
        for _ in range(10):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 10)
    return sorted(times)[len(times) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiles", action="store_true", help="try tiles of other sizes")
    arguments = parser.parse_args()
    from surefoot.kernels import fused_wide

    for name, found in check():
        print(name, found, flush=True)
    for precision in ("ieee", "tf32"):
        torch.backends.cuda.matmul.fp32_precision = precision
        print(f"cuBLAS, {precision}: {milliseconds(plain):.3f} ms", flush=True)
        print(f"cuBLAS and one kernel for each slope, {precision}: {milliseconds(rounded):.3f} ms", flush=True)
    for tile in TILES if arguments.tiles else TILES[:1]:
        for name in NAMES[:3]:
            setattr(fused_wide, name, tile[name])
        fused_wide.HOW = {name: tile[name] for name in NAMES[3:]}
        for parts in (3, 2, 1):
            try:
                said = f"{milliseconds(lambda x, layers, parts=parts: fused(x, layers, parts)):.3f} ms"
            except Exception as error:  # registers or shared memory do not suffice
                said = repr(error)
            print(f"ours, {parts} parts, {tile}: {said}", flush=True)


if __name__ == "__main__":
    main()
