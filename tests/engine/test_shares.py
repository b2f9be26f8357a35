"""Several processes learn as one: the same episodes, and the same weights up to rounding."""

import gymnasium
import numpy as np
import pytest
import torch

from surefoot.algorithms import ALGORITHMS
from surefoot.engine.group import ALONE
from surefoot.engine.shares import Shares
from surefoot.envs.device_rewards import DeviceRewardNormalizer
from surefoot.math.operations import OPERATIONS
from surefoot.training.callbacks import Callback
from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer
from tests import worker_envs
from tests.building import make_policy, make_rollout
from tests.together import together, trained

SHORT = {"rollout_length": 16, "num_epochs": 3}


def settings_of(algo, engine):
    """Short rollouts, for those algorithms that have them."""
    chosen = {"engine": engine}
    if algo != "reinforce":
        chosen["rollout_length"] = 16
    if algo.startswith("ppo"):
        chosen["num_epochs"] = 3
    return chosen


def check(env, algo, settings, size, *, updates=1, exact=True, close=2e-4):
    """Train alone and in `size` processes; compare what they collected and learned."""
    alone, seen = trained(env, algo, settings, ALONE, updates)
    found = together(size, lambda group: trained(env, algo, settings, group, updates))
    for name in ("obs", "action", "dist_params"):
        steps = min(len(recorder.first[name]) for _, recorder in found)  # whole episodes differ in length
        whole = torch.cat([recorder.first[name][:steps] for _, recorder in found], 1)
        if exact:
            assert torch.equal(whole, seen.first[name][:steps])
        else:
            # PyTorch rounds a row differently by the size of the batch; what follows from an action differs more.
            torch.testing.assert_close(whole[0], seen.first[name][0], rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(whole, seen.first[name][:steps], rtol=1e-5, atol=1e-5)
    theta = alone.learner.flat.vector
    for trainer, recorder in found:
        assert torch.equal(trainer.learner.flat.vector, found[0][0].learner.flat.vector)
        assert trainer.step == alone.step
        assert recorder.metrics == found[0][1].metrics
    torch.testing.assert_close(found[0][0].learner.flat.vector, theta, rtol=1e-3, atol=close)
    for name in ("kl", "kl_max", "kl_p95", "entropy", "grad_norm", "explained_variance", "value_loss", "policy_loss"):
        if name in seen.metrics[0]:
            assert found[0][1].metrics[0][name] == pytest.approx(seen.metrics[0][name], rel=2e-2, abs=2e-5), name
    return alone, found


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_two_processes_learn_what_one_would(algo, env):
    check(env, algo, settings_of(algo, "native"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algo", list(ALGORITHMS))
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_any_number_of_processes(algo, env, engine, size):
    check(env, algo, settings_of(algo, engine), size, exact=engine == "native")


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("ppo", {"memory": "gru", "num_minibatches": 4, "num_epochs": 2}),
        ("ppo", {"normalize_observations": True, "normalize_rewards": True, "num_epochs": 2}),
        ("ppo", {"stop_kl": 1e-3, "learning_rate": 3e-3, "recompute_advantage": True}),
        ("ppo", {"normalize_advantage": "batch", "num_minibatches": 64, "num_epochs": 1}),  # some have no sample here
        ("trpo", {"fisher_fraction": 0.3}),
        ("trpo", {"memory": "lstm", "fisher_fraction": 0.5, "value_minibatches": 4}),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_memory_normalisers_and_decisions(algo, settings, engine):
    check("CartPole-v1", algo, {"rollout_length": 16, "engine": engine, **settings}, 2, updates=2, exact=False)


@pytest.mark.parametrize("engine", ["native", pytest.param("torch", marks=pytest.mark.slow)])
def test_settings_that_change_an_update(engine):
    """Noise on the means is drawn for the samples of all, and a critic's own passes are shared as well."""
    settings = {"surrogate": "spo", "optimizer": "adam-rel", "mean_noise": 0.3, "outer_learning_rate": 1.3}
    settings |= {"value_epochs": 3, "num_epochs": 2, "rollout_length": 16, "engine": engine}
    check("Pendulum-v1", "ppo", settings, 2, updates=2, exact=False)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("name", ["Masked", "Nested"])
def test_masks_and_any_space(name, engine):
    settings = {"rollout_length": 16, "num_epochs": 2, "engine": engine}
    _, found = check(f"{worker_envs.__file__}:{name}", "ppo", settings, 2, updates=2, exact=False)
    for trainer, _ in found:
        assert bool(trainer.envs.layout.mask_size) == (name == "Masked")


def test_episodes_are_those_of_all_with_the_envs_of_the_whole_run():
    alone, found = check("CartPole-v1", "a2c", {"rollout_length": 32}, 4, updates=3)
    assert sorted(found[0][0].journal.recent) == sorted(alone.journal.recent)
    ended = [[(e.env, e.ret) for e in trainer.journal.latest] for trainer, _ in found]
    assert all(each == ended[0] for each in ended)
    assert sorted(ended[0]) == sorted((e.env, e.ret) for e in alone.journal.latest)


def test_whoever_stops_stops_all():
    def work(group):
        trainer, recorder = trained("CartPole-v1", "a2c", {"rollout_length": 8}, group, 2 if group.index else 1_000)
        return trainer.stop_reason, len(recorder.metrics)

    assert together(2, work) == [("enough", 2), ("enough", 2)]


@pytest.mark.parametrize("what", ["suspend", "ask"])
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("moment", ["on_rollout", "on_update", "on_evaluation", "on_log"])
def test_a_signal_reaches_each_process_at_another_moment(moment, who, what):
    """It may arrive anywhere between two exchanges; then nobody may go ahead alone."""
    settings = {"num_envs": 4, "rollout_length": 8, "eval_every": 32, "selection_episodes": 1, "log_every": 32}
    config = resolve("CartPole-v1", "a2c", preset="none", overrides={"total_steps": 320, "threads": 1, **settings})

    def work(group):
        class Arriving(Callback):
            count = 0

        def arrive(callback, trainer, *_):
            callback.count += 1
            if callback.count == 3 and group.index == who:
                {"suspend": trainer.suspend, "ask": trainer.saving.ask}[what]("a signal")

        setattr(Arriving, moment, arrive)
        trainer = Trainer(config, 3, group=group)
        trainer.attach(callbacks=[Arriving()], evaluation_env=lambda **_: gymnasium.make("CartPole-v1"))
        trainer.train()
        return trainer.stop_reason, trainer.suspended, trainer.step

    first, second = together(2, work)
    assert first == second
    assert first[0] == ("a signal" if what == "suspend" else None)
    assert (first[2] < 320) == (what == "suspend")


def test_an_update_that_fails_in_one_process_fails_in_all():
    from surefoot.errors import NonFiniteError

    def work(group):
        with pytest.raises(NonFiniteError):
            trained("CartPole-v1", "ppo", {"rollout_length": 16, "learning_rate": 1e30}, group, 3)
        return True

    assert together(2, work) == [True, True]


def test_every_sample_of_a_shuffle_belongs_to_one_process():
    policy = make_policy()
    rollout = make_rollout(policy, steps=6)
    from surefoot.algorithms.ppo_clip import Config, PPOClip

    batch = PPOClip(Config()).estimate(rollout)
    envs = batch.num_envs

    def work(group):
        order = np.random.default_rng(0).permutation(len(batch) * group.size)
        passes = Shares(group).passes(batch, [order], 4)
        at, _ = Shares(group).own(order, batch)
        return order[at], passes

    found = together(3, work)
    taken = np.concatenate([at for at, _ in found])
    assert sorted(taken.tolist()) == list(range(len(batch) * 3))
    for index, (at, passes) in enumerate(found):
        assert set((at % (3 * envs)) // envs) == {index}
        assert np.array_equal(passes.moments, found[0][1].moments)
        assert passes.begins[-1] == len(batch)
    assert found[0][1].moments[:, 2].sum() == 3 * len(batch)


def test_rewards_on_a_device_are_scaled_by_the_statistics_of_all():
    random = torch.Generator().manual_seed(0)
    reward, chance = (torch.randn(6, 4, generator=random, dtype=torch.float64) for _ in range(2))
    done, valid = chance > 1.0, chance > -1.5
    cpu = torch.device("cpu")
    whole = DeviceRewardNormalizer(4, 0.9, cpu)
    whole.observe(reward, done, valid)
    expected = whole.scale(reward)

    def work(group):
        own, normalizer = slice(2 * group.index, 2 * group.index + 2), DeviceRewardNormalizer(2, 0.9, cpu)
        normalizer.observe(reward[:, own], done[:, own], valid[:, own], OPERATIONS.over_all(group.sum_))
        return normalizer.scale(reward[:, own]), normalizer.moments.state_dict()

    found = together(2, work)
    torch.testing.assert_close(torch.cat([scaled for scaled, _ in found], 1), expected)
    for _, state in found:
        assert state == pytest.approx(whole.moments.state_dict())
