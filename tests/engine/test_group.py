"""The seam for several processes: what a group does to a gradient is what every engine then steps along."""

import pytest
import torch

from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.engine.contract import LearnerOptions
from surefoot.engine.group import ALONE
from surefoot.engine.registry import get_engine
from tests.building import make_policy, make_rollout

ENGINES = ["torch", "native"]


class Twins:
    """Two processes that have the same envs: the sum is twice one's own."""

    size = 2

    def __init__(self):
        self.sums = 0

    def sum_(self, numbers):
        self.sums += 1
        return numbers.mul_(2.0)

    def agree(self, value):
        return value


class Opposites(Twins):
    """The other one has the opposite gradient: together they stand still."""

    def sum_(self, numbers):
        return numbers.zero_()


def learned(engine, group):
    policy, algorithm = make_policy(), PPOClip(Config(num_epochs=2, num_minibatches=4))
    options = LearnerOptions(torch.Generator().manual_seed(0), 1, group=group)
    learner = get_engine(engine).learner(policy, algorithm, options)
    before = learner.flat.vector.clone()
    algorithm.update(learner, make_rollout(policy, steps=8))
    return before, learner.flat.vector


@pytest.mark.parametrize("engine", ENGINES)
def test_twins_learn_what_one_would(engine):
    twins = Twins()
    _, together = learned(engine, twins)
    _, alone = learned(engine, ALONE)
    assert twins.sums == 8  # once for each minibatch
    torch.testing.assert_close(together, alone, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_step_is_taken_along_what_the_group_says(engine):
    before, after = learned(engine, Opposites())
    assert torch.equal(before, after)


def test_alone_nothing_is_exchanged():
    numbers = torch.ones(3)
    assert ALONE.sum_(numbers) is numbers
    assert ALONE.agree(0.5) == 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_an_observer_sees_every_gradient_and_changes_nothing(engine):
    def trained(observer):
        policy, algorithm = make_policy(), PPOClip(Config(num_epochs=2, num_minibatches=4))
        learner = get_engine(engine).learner(policy, algorithm, LearnerOptions(torch.Generator().manual_seed(0), 1))
        learner.observer = observer
        metrics = algorithm.update(learner, make_rollout(policy, steps=8))
        return metrics, learner.flat.vector

    norms = []
    watched = trained(lambda kind, vector: norms.append(float(vector.norm())))
    alone = trained(None)
    assert watched[0] == alone[0]
    assert torch.equal(watched[1], alone[1])
    assert len(norms) == 8
    assert sum(norms) / 8 == pytest.approx(alone[0]["grad_norm"], rel=1e-5)
