"""The model of many ranks in benchmarks/, against numbers worked out by hand."""

import json
import sys
from importlib import import_module
from math import inf
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
LINK = (1.0, 100.0)  # seconds, bytes per second


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module


@pytest.fixture
def simulation(module):
    return module("scale_simulation")


@pytest.fixture
def ideal(simulation):
    """Ranks that exchange for nothing."""
    free = simulation.Link(0.0, inf)
    return simulation.Network(free, free)


class TestReductions:
    def test_ring(self, simulation):
        """Four ranks, 1,000 bytes: 2 · 3 messages of 250 bytes, each 1 + 2.5 s."""
        assert simulation.ring(1000.0, 4, simulation.Link(*LINK)) == pytest.approx(21.0)

    def test_the_slowest_link_sets_the_pace_of_a_ring(self, simulation):
        network = simulation.Network(simulation.Link(0.1, 50.0), simulation.Link(*LINK), per_node=4)
        assert network.link(4) == simulation.Link(0.1, 50.0)
        assert network.link(5) == simulation.Link(1.0, 50.0)

    def test_tree(self, simulation):
        """Eight nodes of one rank, 800 bytes: 2 · 3 latencies, and 2 · 7/8 of 8 s."""
        link = simulation.Link(*LINK)
        assert simulation.tree(800.0, 8, simulation.Network(link, link, per_node=1)) == pytest.approx(6 + 14)

    def test_tree_of_ranks_that_share_a_link(self, simulation):
        """Two nodes of four, 800 bytes: ½ · 800 bytes of each rank between nodes, then ¾ · 400 bytes within."""
        network = simulation.Network(simulation.Link(0.1, 1000.0), simulation.Link(*LINK), per_node=4)
        assert simulation.tree(800.0, 8, network) == pytest.approx(2 * (1 + 16) + 2 * (0.2 + 0.3))

    def test_hierarchical(self, simulation):
        """The same: between two nodes 2 · (1 + ½ · 8) s, within a ring of 6 · (0.1 + 0.2) s. For 8 bytes, a tree."""
        network = simulation.Network(simulation.Link(0.1, 1000.0), simulation.Link(*LINK), per_node=4)
        assert simulation.hierarchical(800.0, 8, network) == pytest.approx(6 * 0.3 + 2 * (1 + 4))
        assert simulation.hierarchical(8.0, 8, network) == pytest.approx(4 * 0.108 + 2 * (1 + 0.04))

    def test_compression_divides_bytes_and_not_latencies(self, simulation):
        link = simulation.Link(*LINK)
        work, network = simulation.Work(1.0, 0.0, 1, 1000.0), simulation.Network(link, link)
        plain, half = (simulation.exchange(work, simulation.Plan(compression=by), network, 4)[0] for by in (1.0, 2.0))
        assert (plain, half) == (pytest.approx(6 + 15), pytest.approx(6 + 7.5))

    def test_a_gather_and_small_sums_are_counted_once_per_update(self, simulation):
        """Three ranks: two sums of 64 bytes; a gather of 0.5 + 2 · (1 + 1 + 0.1) s, and 2 · 0.25 s to read it."""
        link = simulation.Link(*LINK)
        work = simulation.Work(1.0, 0.0, 0, 0.0, small=2, gathers=1, object_size=10.0, call=0.5, unpack=0.25)
        _, other = simulation.exchange(work, simulation.Plan(), simulation.Network(link, link), 3)
        assert other == pytest.approx(2 * (0.5 + 4 * (1 + 64 / 3 / 100)) + 0.5 + 4.2 + 0.5)


class TestEfficiency:
    def test_one_rank_is_the_unit(self, simulation):
        link = simulation.Link(*LINK)
        work = simulation.Work(2.0, 0.1, 5, 1e6, small=3, gathers=2, call=1.0, unpack=1.0, alone=0.5, samples=7.0)
        for plan in (simulation.Plan(), simulation.Plan("hierarchical", stale=0, preempt=0.6)):
            assert simulation.efficiency(work, plan, simulation.Network(link, link), 1) == pytest.approx(1.0)

    def test_equal_ranks_that_exchange_for_nothing_lose_nothing(self, simulation, ideal):
        work = simulation.Work(2.0, 0.1, 5, 1e6, small=3, gathers=2, object_size=100.0)
        for plan in ("ring", "tree", "hierarchical"):
            assert simulation.efficiency(work, simulation.Plan(plan), ideal, 1024) == pytest.approx(1.0)

    def test_the_longest_of_n_exponential_rollouts_takes_their_harmonic_number(self, simulation, ideal):
        work = simulation.Work(1.0, 0.0, 0, 0.0, rollout_cv=1.0)
        harmonic = sum(1 / k for k in range(1, 17))
        found = simulation.efficiency(work, simulation.Plan(), ideal, 16, updates=4000)
        assert found == pytest.approx(1 / harmonic, rel=0.02)

    def test_every_gradient_step_waits_for_the_slowest(self, simulation, ideal):
        work = simulation.Work(0.0, 1.0, 50, 0.0, gradient_cv=1.0)
        assert simulation.efficiency(work, simulation.Plan(), ideal, 2) == pytest.approx(1 / 1.5, rel=0.02)  # H₂

    def test_an_exchange_as_long_as_the_work_halves_it(self, simulation):
        link = simulation.Link(0.25, inf)
        work = simulation.Work(1.0, 0.0, 2, 0.0)  # two rings of two messages
        network = simulation.Network(link, link)
        assert simulation.efficiency(work, simulation.Plan(), network, 2) == pytest.approx(0.5)
        # With policies one update old, the exchange is hidden behind the next rollout.
        assert simulation.efficiency(work, simulation.Plan(stale=1), network, 2) == pytest.approx(1.0, abs=0.02)

    def test_fewer_minibatches_are_as_much_work_and_less_exchange(self, simulation):
        """Eight reductions of 0.5 s beside 4 s of work, or two."""
        link = simulation.Link(0.25, inf)
        work, network = simulation.Work(2.0, 0.25, 8, 0.0), simulation.Network(link, link)
        many, few = (simulation.efficiency(work, simulation.Plan(fewer=n), network, 2) for n in (1, 4))
        assert (many, few) == (pytest.approx(4 / 8), pytest.approx(4 / 5))

    def test_strong_scaling_is_relative_to_one_rank_with_all_envs(self, simulation, ideal):
        whole = simulation.Work(9.0, 0.0, 0, 0.0, alone=1.0, samples=8.0)
        part = simulation.Work(9.0 / 8, 0.0, 0, 0.0, alone=1.0, samples=1.0)
        found = simulation.efficiency(part, simulation.Plan(), ideal, 8, alone=whole)
        assert found == pytest.approx(10.0 / (9.0 / 8 + 1.0) / 8)

    def test_a_seed_repeats_itself(self, simulation, ideal):
        work = simulation.Work(1.0, 0.0, 0, 0.0, rollout_cv=0.5)
        once, again, other = (simulation.simulate(work, simulation.Plan(), ideal, 8, seed=seed) for seed in (1, 1, 2))
        assert once == again != other


def test_stragglers_stop_when_enough_ranks_are_done_but_not_before_a_quarter(simulation):
    """Of 1, 2, 3 and 20 s, three quarters are done after 3 s; the last must collect 5 s."""
    end, share = simulation.preempted(np.zeros(4), np.array([1.0, 2.0, 3.0, 20.0]), simulation.Plan(preempt=0.75))
    assert end.tolist() == [1.0, 2.0, 3.0, 5.0]
    assert share.tolist() == [1.0, 1.0, 1.0, 0.25]
    end, share = simulation.preempted(np.zeros(2), np.array([1.0, 9.0]), simulation.Plan())
    assert (end.tolist(), share.tolist()) == ([1.0, 9.0], [1.0, 1.0])


def measured(ring, gather):
    sizes = (64, 1_000_000)
    return {
        str(ranks): {"sums": {str(size): {"median": ring(ranks, size)} for size in sizes}, "gather": gather(ranks)}
        for ranks in (2, 3, 4)
    }


class TestFit:
    def test_it_finds_what_made_the_numbers(self, module, simulation):
        link = simulation.Link(2e-5, 1e9)
        found = measured(lambda r, size: 1e-4 + simulation.ring(size, r, link), lambda r: 1e-3 + (r - 1) * 7e-5)
        fit = module("scale_model").fit_reductions(found, cores=8)
        assert (fit.call, fit.near.latency) == (pytest.approx(1e-4), pytest.approx(2e-5))
        assert fit.near.bandwidth == pytest.approx(1e9)
        assert fit.unpack == pytest.approx(7e-5 - 2 * 2e-5)
        assert max(fit.error.values()) < 1e-9

    def test_ranks_that_take_turns_are_left_out_and_the_prediction_is_what_two_ranks_measured(self, module, simulation):
        """On two cores, three and four ranks wait for a core. What two of them cost is software on any network."""
        model, link = module("scale_model"), simulation.Link(3e-4, 1e9)
        turns = measured(lambda r, size: r * (r > 2) * 1e-3 + simulation.ring(size, r, link), lambda r: 1e-3)
        fit = model.fit_reductions(turns, cores=2)
        assert (fit.near.latency, fit.call) == (0.0, pytest.approx(6e-4))
        assert list(fit.error) == ["2"]
        work = simulation.Work(rollout=0.1, gradient=1e-3, steps=100, size=64.0, call=fit.call)
        for found in model.predictions(work, None, fit.near, updates=2).values():
            alone = 0.1 + 100 * 1e-3
            assert found["weak"][model.NOW]["2"] == pytest.approx(
                alone / (alone + 100 * turns["2"]["sums"]["64"]["median"])
            )

    def test_nothing_is_negative(self, module):
        fit = module("scale_model").fit_reductions(measured(lambda r, size: size * 1e-9, lambda r: 1e-3 / r), cores=8)
        assert (fit.near.latency, fit.unpack) == (0.0, 0.0)
        assert 0.0 <= fit.call < 1e-8

    def test_the_costs_of_a_rank_are_linear_in_its_envs(self, module):
        """128 steps, 32 minibatches: n envs are 4 n samples in each of 320 gradients."""
        model = module("scale_model")

        def row(n):
            parts = {"env": 128 * n * 1e-3, "act": 128 * (1e-4 + n * 1e-5), "learn": 320 * (2e-4 + 4 * n * 1e-6)}
            return {**parts, "seconds": sum(parts.values()) + 0.01, "rollout_cv": 0.1}

        exchanged = {"exchanges": {"gradients": 320.0, "sum": 8.0, "max": 2.0, "gather": 2.0}, "gradient_cv": 0.2}
        exchanged |= {"gradient_bytes": 44_340, "object_bytes": 19.0}
        found = {"rollout_length": 128, "minibatches": 32, "alone": {str(n): row(n) for n in (4, 16, 64)}}
        costs = model.fit_costs(found | {"together": {"2": exchanged}})
        work = costs.work(8, model.Fit(1e-4, model.Link(*LINK), 0.0, {}))
        assert work.rollout == pytest.approx(128 * (8e-3 + 1e-4 + 8e-5))
        assert work.gradient == pytest.approx(2e-4 + 32e-6)
        assert (work.steps, work.small, work.gathers, work.size, work.samples) == (320, 10, 2, 44_340, 1024)
        assert work.alone == pytest.approx(0.01)


class TestPublications:
    def test_the_next_free_core_takes_the_next_task(self, module):
        """On two cores, tasks of 3, 1, 1, 1 and 2: the second core is free after 3 s, and so is the first."""
        assert module("published_scaling").finished([3.0, 1.0, 1.0, 1.0, 2.0], 2) == 5.0

    def test_the_ring_that_the_bandwidth_comes_from(self, module):
        found = module("published_scaling")
        seconds = [found.ring(size, found.RAY_NODES, found.NETWORK) for size in found.RAY_RING]
        assert seconds[1] == pytest.approx(found.RAY_RING[1e9], rel=0.01)
        assert seconds[0] < found.RAY_RING[100e6]

    def test_more_spread_or_no_preemption_costs_efficiency(self, module):
        found = module("published_scaling")
        equal, varied = (found.ddppo(cv, found.RDMA) for cv in (0.0, 0.3))
        assert found.ddppo(0.3, found.RDMA, preempt=1.0) < varied < equal


def test_from_where_a_plan_is_worth_it(module):
    model = module("scale_model")
    found = {model.NOW: dict.fromkeys(map(str, model.RANKS), 0.5), "other": dict.fromkeys(map(str, model.RANKS), 0.5)}
    assert model.worth_it(found, "other") == "–"
    found["other"] |= {"256": 0.56, "1024": 0.9}
    assert model.worth_it(found, "other") == "256 ranks"


def test_the_work_between_reductions_is_the_gradients(module):
    """Two gradients of 40 bytes with a metric between them and a third right after."""
    worker = module("ranks_worker")
    notes = [worker.Note("sum", 40, 1.0, 0.5), worker.Note("sum", 40, 2.0, 0.5), worker.Note("max", 8, 3.0, 0.1)]
    assert worker._between([*notes, worker.Note("sum", 40, 4.0, 0.5)]) == [0.5]


def test_the_env_that_computes(module):
    env = module("ranks_worker").Computing(additions=3)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    steps = 1
    while not env.step(0)[2]:
        steps += 1
    assert 100 < steps <= 200
    assert env._sum == 0 + 1 + 2


@pytest.mark.parametrize("name", ["ranks", "scale_model"])
def test_every_script_explains_itself(name, module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit, match=r"^0$"):
        module(name).main()
    assert "--out FILE.json" in capsys.readouterr().out


def test_the_page_has_the_numbers_of_the_files(module):
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert module("report").fill(page) == page


def test_what_the_page_concludes_is_in_the_file(module):
    """Compression hardly helps small policies, reducing within nodes does; camera policies gain from preemption."""
    model, file = module("scale_model"), ROOT / "benchmarks" / "results" / "scale_model.json"
    if not file.exists():
        pytest.skip("benchmarks/scale_model.py has not been run")
    found = {
        env: own["predicted"][model.MAIN]["weak"] for env, own in json.loads(file.read_text("utf-8"))["envs"].items()
    }
    camera = found.pop("camera policy (assumed)")
    for own in found.values():
        assert model.worth_it(own, "gradients of one bit per number (bytes / 32)") == "–"
        assert own[model.THEN]["256"] > 1.1 * own[model.NOW]["256"]
        assert own["a quarter of the minibatches"]["8"] > own[model.NOW]["8"]
    stopped = camera["that, with stragglers stopped once 60 % are done"]
    assert stopped["256"] > 1.1 * camera[model.THEN]["256"]
