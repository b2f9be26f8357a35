"""The compiled learner and collector against the torch ones: one update of every algorithm, rollouts, the choice."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.engine.native import collector
from surefoot.engine.native.networks import CompiledNetworks
from surefoot.engine.registry import choose_engine
from surefoot.engine.torch.flat import FlatParameters
from surefoot.engine.torch.natural import fisher_by_autograd
from surefoot.envs import native_envs
from surefoot.errors import NonFiniteError, UsageError
from surefoot.kernels import library
from surefoot.kernels.stored import StoredActing
from tests.building import CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout
from tests.marks import quick

SETTINGS = {
    "plain": {},
    "batch": {"normalize_advantage": "batch", "entropy_coef": 0.02},
    "huber": {"value_loss": "smooth_l1", "value_clip": 0.2},
    "rmsprop": {"optimizer": "rmsprop", "max_grad_norm": None},
    "two-rates": {"critic_learning_rate": 3e-3},
    "stop": {"stop_kl": 1e-3, "num_epochs": 8},
    "recompute": {"recompute_advantage": True},
    "whole": {"num_minibatches": 1},
    "fisher": {"fisher_fraction": 0.5},
    "spo": {"surrogate": "spo"},
    "adam-rel": {"optimizer": "adam-rel", "entropy_coef": 0.0},
    "mean-noise": {"mean_noise": 0.5},
    "outer": {"outer_learning_rate": 1.6},
    "critic-apart": {"value_epochs": 3, "num_epochs": 2, "critic_learning_rate": 3e-3},
}
NEEDS = {"mean-noise": lambda kind: kind.startswith("box"), "critic-apart": lambda kind: kind in ("discrete", "box")}


def has(name, settings):
    return set(settings) <= {field.name for field in fields(ALGORITHMS[name].config_type)}


PAIRS = [(name, key) for name in ALGORITHMS for key, settings in SETTINGS.items() if has(name, settings)]


def learners(name, space, memory="none", **settings):
    """The same algorithm, policy and optimizer, with either engine."""
    kind = ALGORITHMS[name]
    for engine in ("torch", "native"):
        algorithm = kind(kind.config_type(num_envs=8, **settings))
        size = {} if memory == "none" else {"memory_size": 24}
        policy = make_policy(space, critic=kind.uses_critic, memory=memory, **size)
        yield algorithm, make_learner(engine, policy, algorithm, seed=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_discrete_observations_are_served(name, tmp_path):
    """One-hot: there is nothing to learn before the MLPs."""
    more = {"max_episode_steps": 20, "total_steps": 1500} if name == "reinforce" else {}
    runs = [short("FrozenLake-v1", engine, tmp_path, algo=name, **more) for engine in ("torch", "native")]
    first, twin = (run.metrics[0] for run in runs)
    for key, value in first.items():
        assert twin[key] == (value if value is None else pytest.approx(value, rel=1e-2, abs=1e-4)), key


KINDS = {"discrete": (DISCRETE, "none"), "box": (CONTINUOUS, "none")}
KINDS |= {"discrete-gru": (DISCRETE, "gru"), "box-lstm": (CONTINUOUS, "lstm")}


UPDATES = [(name, key, kind) for name, key in PAIRS for kind in KINDS if NEEDS.get(key, bool)(kind)]
QUICK = [case for case in UPDATES if KINDS[case[2]][1] == "none" or case[1] == "plain"]


@pytest.mark.parametrize(("name", "settings", "kind"), quick(UPDATES, *QUICK))
def test_an_update_is_the_same(name, settings, kind):
    found = []
    for algorithm, learner in learners(name, *KINDS[kind], **SETTINGS[settings]):
        for seed in range(2):
            rollout = make_rollout(learner.policy, steps=16, num_envs=8, seed=seed, remaining=0.5)
            if seed:
                rollout.valid[3:5, 2] = False  # steps that are no transitions
            learner.set_rates(0.5)
            metrics = algorithm.update(learner, rollout)
        found.append((metrics, learner.flat.vector.clone(), learner.optimizer.steps))
    (theirs, weights, steps), (ours, vector, count) = found
    assert ours.keys() == theirs.keys()
    assert count == steps
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key
    assert (vector - weights).abs().max() < 2e-4  # of steps of 1e-3: Adam turns rounding into sign where g is about 0
    assert (vector - weights).norm() < 2e-3 * weights.norm()


def test_an_update_that_is_not_finite_leaves_everything_as_it_was():
    algorithm, learner = list(learners("ppo", DISCRETE))[1]
    rollout = make_rollout(learner.policy, steps=16, num_envs=8)
    rollout.reward[0, 0] = float("inf")
    before = (learner.flat.vector.clone(), learner.optimizer.first.clone(), learner.optimizer.steps)
    with pytest.raises(NonFiniteError):
        algorithm.update(learner, rollout)
    after = (learner.flat.vector, learner.optimizer.first, learner.optimizer.steps)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(before, after, strict=True))


def short(env, engine, tmp_path, **settings):
    base = {"preset": "none", "total_steps": 1200, "seed": 3, "eval_episodes": 0, "progress": False, "num_envs": 3}
    base |= {"log_every": 200} | ({} if settings.get("algo") == "reinforce" else {"rollout_length": 40})
    return surefoot.train(env, run_dir=tmp_path / engine, engine=engine, **base | settings)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"num_minibatches": 4}),
        ("Pendulum-v1", {"normalize_observations": True, "normalize_rewards": True}),
        ("CartPole-v1", {"algo": "reinforce", "max_episode_steps": 60, "total_steps": 4000}),
        ("Acrobot-v1", {"algo": "trpo", "reset_each_rollout": True}),
        ("MountainCarContinuous-v0", {"algo": "a2c", "std": "state"}),
        ("CartPole-v1", {"memory": "gru", "max_episode_steps": 30, "num_minibatches": 3}),
        ("CartPole-v1", {"memory": "lstm", "num_envs": 20, "num_minibatches": 4}),
        ("CartPole-v1", {"memory": "gru", "algo": "reinforce", "max_episode_steps": 60, "total_steps": 4000}),
        ("Pendulum-v1", {"memory": "lstm", "normalize_observations": True, "num_minibatches": 3}),
        pytest.param(
            "Acrobot-v1",
            {"memory": "gru", "algo": "trpo", "reset_each_rollout": True, "value_minibatches": 3},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_runs_of_both_engines_tell_the_same_story(env, settings, tmp_path):
    """Noise and shuffling are the same, so that runs part only by rounding."""
    torch_run, native_run = (short(env, engine, tmp_path, **settings) for engine in ("torch", "native"))
    assert native_run.result["engine"] == "native"
    assert native_run.result["episodes"] == pytest.approx(torch_run.result["episodes"], rel=0.05, abs=1)
    first, twin = torch_run.metrics[0], native_run.metrics[0]
    assert first.keys() == twin.keys()
    for key, value in first.items():
        assert twin[key] == (value if value is None else pytest.approx(value, rel=1e-2, abs=1e-4)), key


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_same_seed_gives_the_same_bytes_with_any_number_of_threads(memory, tmp_path):
    settings = {"num_minibatches": 4, "num_envs": 4, "memory": memory}
    runs = [short("CartPole-v1", "native", tmp_path / str(n), threads=n, **settings) for n in (1, 2)]
    files = [(run.path / "metrics.jsonl").read_bytes() for run in runs]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"memory": "gru", "max_episode_steps": 25},
        {"memory": "lstm", "num_envs": 21, "max_episode_steps": 25},
        {"memory": "lstm", "algo": "reinforce", "max_episode_steps": 40, "total_steps": 4000},
        {"memory": "gru", "algo": "a2c", "reset_each_rollout": True},
    ],
    ids=str,
)
def test_a_memory_rolls_out_in_one_call_as_it_does_step_by_step(settings, tmp_path, monkeypatch):
    """To the last bit: how many go through the kernels at once changes no number."""
    more = {"num_minibatches": 3} if "algo" not in settings else {}
    together = short("CartPole-v1", "native", tmp_path / "together", **settings, **more)
    monkeypatch.setattr(native_envs, "native_kind", lambda *_: (None, "not here"))
    apart = short("CartPole-v1", "native", tmp_path / "apart", **settings, **more)
    assert (together.path / "metrics.jsonl").read_bytes() == (apart.path / "metrics.jsonl").read_bytes()
    assert together.metrics[0]["ratio_error"] == 0.0


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPole-v1", {"algo": "a2c"}),
        ("Pendulum-v1", {"normalize_observations": True, "num_minibatches": 3, "max_episode_steps": 30}),
        ("CartPole-v1", {"memory": "lstm", "num_envs": 21, "max_episode_steps": 25, "num_minibatches": 3}),
        ("CartPole-v1", {"num_envs": 4, "workers": 2, "num_minibatches": 4}),
    ],
    ids=str,
)
def test_acting_on_the_storage_gives_the_bits_of_acting_on_copies(env, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(native_envs, "native_kind", lambda *_: (None, "not here"))
    seen = []
    monkeypatch.setattr(StoredActing, "act", lambda *given, act=StoredActing.act: seen.append(1) or act(*given))
    direct = short(env, "native", tmp_path / "direct", **settings)
    assert bool(seen) == ("workers" not in settings)  # they act on their own, unless the observations are not taken raw
    monkeypatch.setattr(collector, "takes_raw_rows", lambda *_: False)
    copied = short(env, "native", tmp_path / "copied", **settings)
    assert (direct.path / "metrics.jsonl").read_bytes() == (copied.path / "metrics.jsonl").read_bytes()


def choose(wanted, policy):
    """(the name of the engine that is chosen, why)."""
    engine, reason = choose_engine(wanted, policy, PPOClip(Config()), None)
    return engine.name, reason


class TestChoice:
    def test_a_plain_policy_is_served(self):
        for memory in ("none", "gru", "lstm"):
            for policy in (make_policy(memory=memory), make_policy(memory=memory, layer_norm=True)):
                assert choose("auto", policy) == ("native", "the kernels serve this policy")
        assert choose("torch", make_policy()) == ("torch", "as asked")

    @pytest.mark.parametrize(
        ("config", "name", "why"),
        [
            ({"memory": "gru", "std": "gsde", "action_space": CONTINUOUS}, "torch", "depends on the state"),
            ({"std": "gsde", "action_space": CONTINUOUS}, "torch", "depends on the state"),
            (
                {"observation_space": spaces.Discrete(500), "shared_trunk": True},
                "hybrid",
                "an encoder that learns; its MLPs are compiled",
            ),
            ({"observation_space": spaces.Discrete(500)}, "torch", "an encoder that learns"),
        ],
    )
    def test_what_is_not_served_is_said(self, config, name, why):
        policy = make_policy(**config)
        chosen, reason = choose("auto", policy)
        assert chosen == name
        assert reason.endswith(why)
        with pytest.raises(UsageError, match="--engine torch"):
            choose("native", policy)

    def test_without_kernels_it_is_torch(self, monkeypatch):
        monkeypatch.setattr(library, "find", lambda name: (_ for _ in ()).throw(library.NotBuilt("not built")))
        library.load.cache_clear()
        try:
            assert choose("auto", make_policy()) == ("torch", "not built")
        finally:
            library.load.cache_clear()

    def test_a_name_that_nobody_has_is_an_error(self):
        with pytest.raises(UsageError, match="unknown engine 'naitve'; did you mean 'native'"):
            choose("naitve", make_policy())


@pytest.mark.parametrize("config", [{"memory": "lstm"}, {"observation_space": spaces.Discrete(500)}, {}], ids=str)
def test_compiled_parts_change_nothing_but_rounding(config):
    shared = {"shared_trunk": True} if "observation_space" in config else {}
    policy = make_policy(**config, **shared)
    flat = FlatParameters(policy)
    rollout_policy = policy
    obs = torch.randint(0, 5, (12, 1)).float() if "observation_space" in config else torch.randn(12, 4)
    action = torch.randint(0, 3, (12,))
    context = None
    if policy.memory is not None:
        start = torch.rand(4, 3) < 0.3
        context = surefoot.types.Context(start, torch.randn(3, policy.memory.size))

    def look():
        outputs = rollout_policy.evaluate(obs, action, context)
        flat.gradient.zero_()
        (outputs.log_prob.sum() + outputs.value.square().sum() + outputs.distribution.entropy().sum()).backward()
        return outputs.log_prob.detach(), outputs.value.detach(), flat.gradient.clone()

    plain = look()
    networks = CompiledNetworks(policy, flat, 1)
    policy.compute_with(networks)
    compiled = look()
    with policy.uncompiled():
        again = look()
    for a, b, c in zip(plain, compiled, again, strict=True):
        assert (a - b).norm() < 1e-5 * a.norm()
        assert torch.equal(a, c)
    assert policy.networks is networks


def test_fisher_products_know_nothing_of_compiled_parts():
    """Their way back is no function that could be differentiated again: products through it would miss the memory."""
    policy = make_policy(memory="gru")
    flat = FlatParameters(policy)
    rollout = make_rollout(policy, num_envs=3)
    batch = ALGORITHMS["npg"](ALGORITHMS["npg"].config_type()).estimate(rollout)
    direction = torch.randn(flat.actor_size)
    plain = fisher_by_autograd(policy, flat.actor_list, batch, 0.1)(direction)
    policy.compute_with(CompiledNetworks(policy, flat, 1))
    assert torch.equal(fisher_by_autograd(policy, flat.actor_list, batch, 0.1)(direction), plain)


def test_an_env_at_fault_is_named_in_a_compiled_rollout(tmp_path):
    class Poison(surefoot.Callback):
        def on_update(self, trainer, metrics):
            with torch.no_grad():
                trainer.learner.flat.vector.fill_(np.nan)

    with pytest.raises(surefoot.errors.SurefootError, match=r"Pendulum-v1 \(env 0, seed \d+, episode 0, step"):
        short("Pendulum-v1", "native", tmp_path, callbacks=[Poison()])
