"""A population launches the very code that one of its agents launches alone, with rows divided in the same way."""

import os

import pytest
import torch

from surefoot.training.life.population import Population, joined
from tests.engine.population import built, on_the_cpu

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
from surefoot.kernels import fused_update
from surefoot.kernels.agents import side_by_side
from surefoot.kernels.fused_descent import add_up
from surefoot.kernels.fused_nets import Net, Weights
from tests.kernels.launches import noted

SETTINGS = {
    "choice": {"num_minibatches": 1, "hidden_sizes": (8, 8)},
    "Gaussian": {"env": "Pendulum-v1", "normalize_observations": True},
}
ROW_BY_ROW = ("_score", "_activity")  # their first axis is that of rows, or of agents
LOSS = fused_update.Terms("clip", epsilon=0, entropy=1, value_weight=2, approx_kl=True, clip_fraction=True)


def codes(found):
    """Everything that decides an agent's bits, by kernel."""
    return {
        (one["kernel"], str(sorted(one["code"].items())), 0 if one["kernel"] in ROW_BY_ROW else one["programs"])
        for one in found.values()
    }


@pytest.mark.parametrize("case", SETTINGS)
def test_a_population_launches_the_code_of_each_agent_alone(case, monkeypatch):
    on_the_cpu(monkeypatch)
    with noted() as found:
        built(0, updates=1, num_epochs=1, **SETTINGS[case]).train()
    alone = codes(found)
    trainers = [built(seed, updates=1, num_epochs=1, **SETTINGS[case]) for seed in range(2)]
    with noted() as found:
        Population(trainers, joined(trainers), [trainer.turns() for trainer in trainers]).train()
    both = codes(found)
    assert {kernel for kernel, *_ in both} >= {"_play", "_look", "_score", "_gradients", "_add_up", "_descend", "_sum"}
    assert sorted(both - alone) == []


def gradients(theta, agents, rows, numbers, parts=3):
    policy = Net(Weights(0, 4, 8, 8, 2), "tanh", 0, parts=parts)
    critic = Net(Weights(130, 4, 8, 8, 1), "tanh", -1, parts=parts)
    own = fused_update.Gradients(theta, policy, critic, LOSS, fused_update.Rows(*rows, None), 1, numbers)
    total = theta.new_zeros(*theta.shape[:-1], own.width)
    squares = theta.new_zeros(agents, -(-(own.parameters + fused_update.SUMS) // 64), 2)
    own.prepare()
    own.compute(0)
    add_up(own, total, squares, 130)
    return own, total, squares


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_sums_of_groups_of_tiles_are_those_tile_by_tile(parts, monkeypatch):
    """Three tiles, the last one half full: an agent alone has three programs, and two agents have two each.

    Of numbers in one part, there are no groups: the compiler, which the interpreter is not, adds several tiles in
    tensor cores.
    """
    monkeypatch.setattr(fused_update, "FULL", 10)
    monkeypatch.setattr(fused_update, "GROUP", 2)
    draw = torch.Generator().manual_seed(0)
    agents, size = 2, 2 * 16 + 8

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    thetas, numbers = normal(agents, 251), torch.tensor([0.1, 0.01, 0.5])
    x, params = normal(agents, size, 4), normal(agents, size, 2)
    action = torch.randint(0, 2, (agents, size), generator=draw)
    log_prob = params.log_softmax(-1).gather(-1, action[..., None])[..., 0]
    columns = [x, action, log_prob, params, *(normal(agents, size) for _ in range(3))]
    with noted() as found:
        both, total, squares = gradients(
            side_by_side(list(thetas)), agents, [c.flatten(0, 1) for c in columns], numbers.repeat(agents, 1), parts
        )
    together = codes(found)
    assert (both.programs, both.tiles, both.group) == ((3, 1, 1) if parts == 1 else (2, 2, 2))
    for agent in range(agents):
        with noted() as found:
            own, mine, norms = gradients(thetas[agent].clone(), 1, [c[agent].clone() for c in columns], numbers, parts)
        assert (own.programs, own.tiles, own.group) == (3, 1, 1 if parts == 1 else 2)
        assert torch.equal(mine, total[agent])
        assert torch.equal(norms[0], squares[agent])
        assert {code[:2] for code in codes(found)} == {code[:2] for code in together}
