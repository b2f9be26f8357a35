"""Several runs at once against each of them alone, to the bit, in Triton's interpreter (where nothing is recorded)."""

import os

import pytest
import torch

from surefoot.engine.cuda.learner import CudaLearner
from surefoot.engine.cuda.population.iteration import Population as Iterations
from surefoot.engine.cuda.population.pages import Page
from surefoot.engine.torch import instruments
from surefoot.engine.torch.learner import Learner
from surefoot.training.life.population import Population, joined
from tests.engine.population import Count, built, on_the_cpu, tensors

os.environ["TRITON_INTERPRET"] = "1"  # it counts when Triton is imported
pytest.importorskip("triton")
SEEDS = (3, 5, 8)
SETTINGS = {
    "schedules": {"learning_rate_schedule": "linear", "clip_ratio_schedule": "linear"},
    "one minibatch": {"num_minibatches": 1},
    "normalised": {
        "env": "Pendulum-v1",
        "normalize_observations": True,
        "normalize_rewards": True,
        "adaptive_kl": 0.01,
    },
    "a2c": {"algo": "a2c"},
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    on_the_cpu(monkeypatch)


@pytest.fixture
def begun(monkeypatch):
    """How many agents began how many iterations together, each time."""
    found, own = [], Iterations.begin

    def begin(self, turns):
        flight = own(self, turns)
        found.append((0, 0) if flight is None else (len(turns), len(flight.pages)))
        return flight

    monkeypatch.setattr(Iterations, "begin", begin)
    return found


def alone(seed, callback=None, **settings):
    trainer = built(seed, callback=callback or Count(), **settings)
    trainer.train()
    return trainer


def together(seeds=SEEDS, callbacks=None, **settings):
    callbacks = callbacks or [Count() for _ in seeds]
    trainers = [built(seed, callback=own, **settings) for seed, own in zip(seeds, callbacks, strict=True)]
    population = Population(trainers, joined(trainers), [trainer.turns() for trainer in trainers])
    population.train()
    return trainers, population.results


def assert_alike(one, other):
    assert one.callbacks[0].seen == other.callbacks[0].seen
    assert [list(row[1]) for row in one.callbacks[0].seen] == [list(row[1]) for row in other.callbacks[0].seen]
    assert all(torch.equal(x, y) for x, y in zip(tensors(one), tensors(other), strict=True))
    assert one.learner.optimizer.steps == other.learner.optimizer.steps
    assert one.step == other.step


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", SETTINGS)
def test_every_agent_has_the_bits_that_it_has_alone(case, begun, monkeypatch):
    monkeypatch.setattr(instruments, "PASSES", 1)  # every second update is measured,
    monkeypatch.setattr(instruments, "HALVES_EVERY", 2)  # the first and the last by halves
    trainers, results = together(**SETTINGS[case])
    assert sum(pages for agents, pages in begun if agents == len(SEEDS)) == 5
    measured = [set(trainers[0].callbacks[0].seen[update][1]) for update in (2, 3, 4)]
    assert ["ratio_p50" in names for names in measured] == [True, False, True]
    assert "gradient_noise" in measured[2]
    assert results == dict.fromkeys(range(len(SEEDS)))
    for seed, trainer in zip(SEEDS, trainers, strict=True):
        assert_alike(trainer, alone(seed, **SETTINGS[case]))


@pytest.mark.slow
def test_iterations_are_begun_many_at_a_time_and_taken_back_where_a_run_stops(begun):
    callbacks = [Count(), Count(stop=4), Count()]
    trainers, _ = together(callbacks=callbacks, updates=6)
    assert begun == [(3, 6)]
    for seed, trainer, stop in zip(SEEDS, trainers, (None, 4, None), strict=True):
        assert_alike(trainer, alone(seed, Count(stop), updates=6))


@pytest.mark.slow
def test_a_member_that_is_refused_does_its_update_alone_and_is_not_waited_for(begun, monkeypatch):
    """Here the ordinary way finds nothing wrong, so all end with the same bits."""
    own, pages = Page.sound, []

    def sound(self, tolerance):
        found = own(self, tolerance)
        pages.append(self)
        found[1] &= len(pages) > 1
        return found

    monkeypatch.setattr(Page, "sound", sound)
    trainers, _ = together()
    assert begun == [(3, 5), (1, 4)]
    for seed, trainer in zip(SEEDS, trainers, strict=True):
        assert_alike(trainer, alone(seed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings",
    [
        {"num_minibatches": 1},
        {"entropy_coef": 0.01, "hidden_sizes": (8, 8)},
        {"env": "Pendulum-v1", "num_minibatches": 1},
        {"env": "Acrobot-v1", "surrogate": "spo"},
    ],
)
def test_instruments_by_kernels_are_those_of_their_twin(settings, monkeypatch):
    found, own = [], CudaLearner.look_over

    def both(self, batch):
        kernels, twin = own(self, batch), Learner.look_over(self, batch)
        found.append(self.look.half)
        assert list(kernels[1]) == list(twin[1])
        assert torch.allclose(kernels[0], twin[0], atol=1e-5)
        for name, x in kernels[1].items():
            assert torch.allclose(x, twin[1][name], rtol=2e-3, atol=1e-5), name
        return kernels

    def half_gradient(self, loss, batch, passes):
        """Where the parameters are those before the first step."""
        kernels, twin = half(self, loss, batch, passes), Learner.half_gradient(self, loss, batch, passes)
        assert torch.allclose(kernels, twin, rtol=1e-4, atol=1e-6)
        return kernels

    half = CudaLearner.half_gradient
    monkeypatch.setattr(CudaLearner, "look_over", both)
    monkeypatch.setattr(CudaLearner, "half_gradient", half_gradient)
    alone(3, updates=1, **settings)
    assert len(found) == 1
    assert (found[0] is not None) == (settings.get("num_minibatches") == 1)
