"""The seam for several processes: what a group does to a gradient is what every engine then steps along."""

import pytest
import torch

from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.engine.contract import LearnerOptions
from surefoot.engine.group import ALONE
from surefoot.engine.registry import get_engine
from tests.building import make_policy, make_rollout

ENGINES = ["torch", "native"]


class Opposites:
    """The other process has the opposite of everything: together they stand still."""

    size, index = 2, 0

    def __init__(self):
        self.sums = []

    def sum_(self, numbers):
        self.sums.append(len(numbers))
        return numbers.zero_() if numbers.is_floating_point() and len(numbers) > 100 else numbers

    def max_(self, numbers):
        return numbers

    def agree(self, value):
        return value

    def gather(self, value):
        return [value, value]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_step_is_taken_along_what_the_group_says(engine):
    group = Opposites()
    policy, algorithm = make_policy(), PPOClip(Config(num_epochs=2, num_minibatches=4))
    options = LearnerOptions(torch.Generator().manual_seed(0), 1, group=group)
    learner = get_engine(engine).learner(policy, algorithm, options)
    before = learner.flat.vector.clone()
    algorithm.update(learner, make_rollout(policy, steps=8))
    assert torch.equal(before, learner.flat.vector)
    assert group.sums.count(len(before)) == 8  # one flat gradient for each minibatch


def test_alone_nothing_is_exchanged():
    numbers = torch.ones(3)
    assert ALONE.sum_(numbers) is numbers
    assert ALONE.max_(numbers) is numbers
    assert ALONE.agree(0.5) == 0.5
    assert ALONE.gather(0.5) == [0.5]


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
