"""Which Triton kernels a run launches, and with what; and whether they compile for a GPU that is not here.

    TRITON_INTERPRET=1 python -m tests.kernels.launches record FILE    # plays short runs in the interpreter
    python -m tests.kernels.launches compile FILE 90                   # compiles what they launched, for sm_90

Each launch is told with what decides its code (`code_of`). A kernel that has the same code for an agent alone and for
one of many, and the same division of rows among programs, adds in the same order.

Triton brings NVIDIA's assembler along, so compiling needs no GPU. The interpreter accepts programs that the compiler
does not.
"""

import importlib
import inspect
import json
import re
import sys
from collections import defaultdict
from contextlib import contextmanager
from zlib import crc32

import torch

WIDE = {"hidden_sizes": (64, 64), "num_envs": 4, "rollout_length": 4, "max_episode_steps": 5, "total_steps": 2 * 16}
RUNS = {
    "categorical": WIDE,
    "gaussian": {**WIDE, "env": "Pendulum-v1", "normalize_observations": True, "normalize_rewards": True},
    "one layer": {**WIDE, "hidden_sizes": (32,), "activation": "relu", "precision": "bf16", "num_minibatches": 1},
}


@contextmanager
def noted():
    """Collects the launches, each once."""
    import pytest
    from triton.runtime.interpreter import InterpretedFunction

    found, run = {}, InterpretedFunction.run

    def noting(self, *args, grid, warmup, **kwargs):
        values = dict(zip(self.arg_names, args, strict=False)) | kwargs
        told = {name: _told(value) for name, value in values.items()}
        one = {"module": self.fn.__module__, "kernel": self.fn.__name__, "arguments": told}
        one["code"] = code_of(self, values)
        one["programs"] = grid[0]  # that share the rows of an agent
        found[json.dumps(one, sort_keys=True)] = one
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", noting)
        yield found


def code_of(kernel, values):
    """What Triton makes a kernel's code from: its constants, and what it is told of each other argument."""
    told, plain = signature(kernel.fn), kernel.kwargs["do_not_specialize"] or ()
    return {name: _kind(value, told[name], name in plain) for name, value in values.items()}


def _kind(value, constant, plain):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.data_ptr() % 16 == 0}"
    if constant or not isinstance(value, int):
        return repr(value) if constant else type(value).__name__
    return "int" if plain else f"int {value == 1} {value % 16 == 0}"


def signature(function):
    """Whether each argument is a constant."""
    return defaultdict(lambda: True, {  # how it is compiled, such as `num_warps`
        name: "constexpr" in str(one.annotation) for name, one in inspect.signature(function).parameters.items()
    })  # fmt: skip


def record(file):
    import pytest

    from surefoot.training.life.population import Population, joined
    from tests.engine.population import built, on_the_cpu

    with pytest.MonkeyPatch.context() as patch, noted() as found:
        on_the_cpu(patch)
        for settings in RUNS.values():
            built(0, **settings).train()
            trainers = [built(seed, **settings) for seed in (1, 2)]
            Population(trainers, joined(trainers), [trainer.turns() for trainer in trainers]).train()
        _advantages()
        _episodes()
        _wide_layers()
        _head_losses()
        _losses_of_parts()
    with open(file, "w", encoding="utf-8") as out:
        json.dump(list(found.values()), out)


def _advantages():
    """On the CPU, runs do not launch this one."""
    from surefoot.kernels.fused_scan import advantages

    columns = [torch.zeros(4, 6)] * 3 + [torch.zeros(4, 6, dtype=torch.bool)] * 3
    for numbers in ((0.99, 0.9, 0.8), torch.zeros(3, 2)):  # alone, and of two agents
        advantages(tuple(columns), numbers, None)


def _episodes():
    """The same holds for these."""
    from surefoot.kernels.fused_episodes import packed

    reward, flag = torch.zeros(4, 6, dtype=torch.float64), torch.zeros(4, 6, dtype=torch.bool)
    packed(reward, flag, flag, flag, reward[:2].clone(), torch.zeros(25, 4, dtype=torch.float64))


def _wide_layers():
    from surefoot.kernels.fused_slopes import rounded_mlp
    from surefoot.kernels.fused_wide import wide_mlp

    layers = [(torch.zeros(n, k, requires_grad=True), torch.zeros(n)) for n, k in ((200, 48), (130, 200), (12, 130))]
    for parts in (3, 2, 1):
        wide_mlp(torch.zeros(130, 48), layers, ["elu", "elu", "none"], parts).sum().backward()
    rounded_mlp(torch.zeros(130, 48), layers, ["elu", "tanh", "none"]).sum().backward()


def _head_losses():
    """Of an actor that chooses, and of one that draws twelve numbers."""
    from surefoot.kernels.fused_head import Columns, HeadLoss
    from surefoot.kernels.fused_update import Terms

    size, numbers = 200, torch.zeros(4)
    terms = Terms("clip", epsilon=0, beta=1, entropy=2, value_weight=3, approx_kl=True, clip_fraction=True)
    for head, outputs, action in ((0, 6, torch.zeros(size, dtype=torch.int64)), (1, 12, torch.zeros(size, 12))):
        columns = Columns(action, *(torch.zeros(size, n).squeeze(-1) for n in (1, (1 + head) * outputs, 1, 1, 1)))
        out, value, log_std = torch.zeros(size, outputs), torch.zeros(size), torch.zeros(outputs)
        HeadLoss(head, outputs, terms, numbers)(out, value, log_std, columns)


def _losses_of_parts():
    """Of actions with a part of each kind, and of those with parts of one kind, with and without KL and entropy."""
    from surefoot.kernels.fused_head import Columns
    from surefoot.kernels.fused_parts import parts_of
    from surefoot.kernels.fused_parts_loss import PartsLoss
    from surefoot.kernels.fused_update import Terms
    from surefoot.kernels.heads import BERNOULLI, BETA, CATEGORICAL, GAUSSIAN, TANH_GAUSSIAN, KernelPart

    size, numbers = 200, torch.ones(4)
    full = Terms("clip", epsilon=0, beta=1, entropy=2, value_weight=3, approx_kl=True, clip_fraction=True)
    each = [KernelPart(kind, 3) for kind in (CATEGORICAL, BERNOULLI, GAUSSIAN, TANH_GAUSSIAN, BETA)]
    for kinds in (each, *([one, one] for one in each)):
        parts = parts_of(kinds, torch.device("cpu"))
        whole = all(part.kind in (CATEGORICAL, BERNOULLI) for part in kinds)
        action = torch.full((size, parts.actions), 0.5).to(torch.int64 if whole else torch.float32)
        params, one = torch.zeros(size, parts.params), torch.zeros(size)
        for terms in (full, Terms("ratio")):
            PartsLoss(parts, terms, numbers)(params, one, Columns(action, one, params, one, one, one))
        parts.log_prob(params, action)


def _told(value):
    return {"tensor": str(value.dtype).removeprefix("torch.")} if isinstance(value, torch.Tensor) else value


class Absent:
    """What Triton asks of the driver of a GPU before it compiles."""

    def __init__(self, capability):
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compile_all(file, capability):
    """Prints for each kernel its name, the size of its code, a word that is the same for the same arithmetic, and how
    often the compiler made one step of a product and a sum.
    """
    from triton.runtime import driver
    from triton.runtime.jit import MockTensor

    driver.set_active(Absent(capability))
    with open(file, encoding="utf-8") as stored:
        launches = json.load(stored)
    for one in {json.dumps([one["kernel"], one["code"]]): one for one in launches}.values():
        kernel = getattr(importlib.import_module(one["module"]), one["kernel"])
        given = {
            name: MockTensor(getattr(torch, value["tensor"])) if isinstance(value, dict) else value
            for name, value in one["arguments"].items()
        }
        made = kernel.warmup(grid=(1,), **given)
        arithmetic = re.findall(r"\b(?:fma|mul|add|sub|div)[a-z.]*\.f(?:32|64)\b", made.asm["ptx"])
        fused = arithmetic.count("fma.rn.f32")  # those that a library asks for are `fma.rn.ftz.f32`
        print(one["kernel"], len(made.asm["cubin"]), crc32(" ".join(arithmetic).encode()), fused, flush=True)


if __name__ == "__main__":
    what, name, *rest = sys.argv[1:]
    record(name) if what == "record" else compile_all(name, int(rest[0]))
