"""MuJoCo in batches in the place of Gymnasium's envs: no Step, error or checkpoint may tell them apart."""

import sys
import warnings
from contextlib import closing
from importlib import import_module

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("mujoco")

import surefoot
from surefoot.cli.installation import examine
from surefoot.envs import backends, side_by_side
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.mujoco import batch, serving
from surefoot.envs.mujoco.batch import NoBatch, Simulations
from surefoot.envs.mujoco.envs import MujocoEnvs
from surefoot.envs.mujoco.serving import TASKS, make_v5, serves, states_differ, v5_task, why_not
from surefoot.envs.mujoco.v5 import sum_of_squares
from surefoot.envs.side_by_side import same_bits, steps_differ
from surefoot.errors import EnvError, NonFiniteError
from surefoot.training.build.envs import settle_workers
from surefoot.training.config.resolve import resolve
from surefoot.types import Restorable, Threaded
from tests.marks import quick

ENVS = [
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Humanoid-v5",
    "HumanoidStandup-v5",
    "InvertedDoublePendulum-v5",
    "InvertedPendulum-v5",
    "Pusher-v5",
    "Reacher-v5",
    "Swimmer-v5",
    "Walker2d-v5",
]


@pytest.fixture(autouse=True)
def _quiet():
    """Gymnasium warns about old versions of ids, and MuJoCo's simulations may warn when they are pushed hard."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        yield


def both(env, num_envs=3, run_seed=5, **config):
    config = EnvConfig(env=env, **config)
    return GymEnvs(lambda: make_env(config), num_envs, run_seed), make_v5(config, num_envs, run_seed)


def actions_for(envs, rng):
    """Random, sometimes beyond the bounds, sometimes at them, sometimes 0."""
    low, high = envs.action_space.low, envs.action_space.high
    drawn = rng.uniform(1.3 * low, 1.3 * high, (envs.num_envs, *low.shape))
    kept = rng.random(drawn.shape) < 0.8
    return np.where(kept, drawn, rng.choice([0.0, -0.0, low[0], high[0]], drawn.shape)).astype(np.float32)


def play_both(theirs, ours, steps, rng, active=None):
    """Both step with the same actions; how many episodes ended. Fails at the first difference."""
    ended = 0
    for number in range(steps):
        action = actions_for(ours, rng)
        mask = None if active is None else active(rng)
        step, twin = theirs.step(action, mask), ours.step(action, mask)
        assert (number, steps_differ(step, twin)) == (number, None)
        assert (number, states_differ(theirs, ours)) == (number, None)
        ended += len(twin.final_obs)
    return ended


def test_every_env_has_its_task():
    registered = {name for name in gym.registry if name.endswith("-v5") and name in ENVS}
    assert registered == {name for name in gym.registry if v5_task(name) is not None} == set(ENVS)
    assert len(TASKS) == len(ENVS)


@pytest.mark.parametrize("env", quick(ENVS, "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedDoublePendulum-v5"))
def test_steps_ends_and_infos_are_the_same(env):
    theirs, ours = both(env, max_episode_steps=12)
    with closing(theirs), closing(ours):
        assert same_bits(theirs.reset(), ours.reset())
        assert play_both(theirs, ours, 30, np.random.default_rng(0)) >= 6
        assert same_bits(theirs.reset(), ours.reset())  # a reset in the middle begins the next episodes
        play_both(theirs, ours, 5, np.random.default_rng(1))
        assert [own.episode for own in theirs.envs] == ours.episode_numbers()
        assert ours.episode_seeds([0, 2], [1, 3]) == theirs.episode_seeds([0, 2], [1, 3])


@pytest.mark.slow
@pytest.mark.parametrize("env", ENVS)
def test_a_thousand_steps_are_the_same(env):
    theirs, ours = both(env, num_envs=2)
    with closing(theirs), closing(ours):
        theirs.reset(), ours.reset()
        play_both(theirs, ours, 1_010, np.random.default_rng(0))
        assert ours.time_limit == theirs.time_limit


@pytest.mark.parametrize("env", quick(ENVS, "Ant-v5"))
def test_some_envs_rest(env):
    theirs, ours = both(env, num_envs=4, max_episode_steps=7)
    with closing(theirs), closing(ours):
        theirs.reset(), ours.reset()
        assert play_both(theirs, ours, 30, np.random.default_rng(0), active=lambda rng: rng.random(4) < 0.6) > 4
        play_both(theirs, ours, 2, np.random.default_rng(0), active=lambda rng: np.zeros(4, np.bool_))


KWARGS = [
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False, "forward_reward_weight": 2}),
    (
        "HalfCheetah-v5",
        {"ctrl_cost_weight": 0.37, "reset_noise_scale": 0, "frame_skip": 2, "width": 64},
    ),
    ("Swimmer-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 1, "frame_skip": 3}),
    ("Hopper-v5", {"healthy_state_range": [-3.0, 3], "healthy_z_range": [0.5, 1.3], "healthy_angle_range": [-1, 1]}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_reward": 3, "reset_noise_scale": 0.1}),
    ("Walker2d-v5", {"xml_file": "walker2d.xml", "healthy_z_range": (0.7, 1.5), "ctrl_cost_weight": 0.5}),
    ("Walker2d-v5", {"exclude_current_positions_from_observation": False, "healthy_reward": 0.25}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_force_range": [-0.3, 0.6], "main_body": "torso"}),
    ("Ant-v5", {"main_body": 3, "healthy_z_range": [0.4, 0.9], "exclude_current_positions_from_observation": False}),
    ("Humanoid-v5", {"include_cinert_in_observation": False, "include_cvel_in_observation": False}),
    ("Humanoid-v5", {"include_qfrc_actuator_in_observation": False, "include_cfrc_ext_in_observation": False}),
    ("Humanoid-v5", {"contact_cost_range": [0.0, 1e-4], "contact_cost_weight": 1e-3, "healthy_reward": 1}),
    ("HumanoidStandup-v5", {"impact_cost_range": [0, 0.01], "ctrl_cost_weight": 1, "uph_cost_weight": 2}),
    ("Reacher-v5", {"reward_dist_weight": 0.7, "reward_control_weight": 2, "frame_skip": 5}),
    ("Pusher-v5", {"reward_near_weight": 1, "reward_dist_weight": 0.3, "reward_control_weight": 0.9}),
    ("InvertedPendulum-v5", {"reset_noise_scale": 0.15}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3, "reset_noise_scale": 0}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("env", "kwargs"), KWARGS)
def test_every_argument_is_honoured(env, kwargs):
    config = EnvConfig(env=env, env_kwargs=kwargs)
    assert why_not(config) == ""
    theirs, ours = both(env, env_kwargs=kwargs, max_episode_steps=15)
    with closing(theirs), closing(ours):
        assert same_bits(theirs.reset(), ours.reset())
        assert play_both(theirs, ours, 32, np.random.default_rng(0)) >= 6


@pytest.mark.parametrize("env", quick(["Hopper-v5", "Ant-v5", "Humanoid-v5", "Pusher-v5"], "Ant-v5"))
def test_each_resumes_what_the_other_saved_in_the_middle_of_episodes(env):
    theirs, ours = both(env, max_episode_steps=20)
    again, again_ours = both(env, max_episode_steps=20)
    rng = np.random.default_rng(3)
    with closing(theirs), closing(ours), closing(again), closing(again_ours):
        assert isinstance(ours, Restorable)
        theirs.reset(), ours.reset()
        play_both(theirs, ours, 33, rng, active=lambda rng: rng.random(3) < 0.8)
        saved, own = theirs.state_dict(), ours.state_dict()
        assert saved["episode"] == own["episode"]
        assert saved["steps"] == own["steps"]
        for left, right in zip(saved["actions"], own["actions"], strict=True):
            assert (left is None and right is None) or same_bits(left, right)
        ours.state_shape().check(own)
        last = ours.observations
        assert again.load_state_dict(own, last) == again_ours.load_state_dict(saved, last) == []
        assert same_bits(again_ours.observations, last)
        play_both(again, again_ours, 30, rng)


def test_an_episode_that_cannot_be_replayed_begins_anew():
    theirs, ours = both("Hopper-v5", max_episode_steps=20)
    with closing(theirs), closing(ours):
        theirs.reset(), ours.reset()
        play_both(theirs, ours, 6, np.random.default_rng(0))
        state, last = ours.state_dict(), ours.observations
        last[0, 0] += 1e-9  # another observation
        state["actions"][1] = state["actions"][1][:-1]  # one action is not known
        assert theirs.load_state_dict(state, last) == ours.load_state_dict(state, last) == [0, 1]
        assert theirs.episode_numbers() == ours.episode_numbers()
        assert same_bits(theirs.observations, ours.observations)
        play_both(theirs, ours, 6, np.random.default_rng(1))


@pytest.mark.parametrize("env", quick(["HalfCheetah-v5", "Humanoid-v5"], "HalfCheetah-v5"))
def test_no_bit_depends_on_the_threads(env):
    config = EnvConfig(env=env, max_episode_steps=9)
    with closing(make_v5(config, 5, 1)) as one, closing(make_v5(config, 5, 1)) as two:
        assert isinstance(two, Threaded)
        two.use_threads(2, measure=False)
        assert (one.threads, two.threads) == (1, 2)
        assert "on 2 threads" in two.notes[0]
        assert same_bits(one.reset(), two.reset())
        rng = np.random.default_rng(0)
        for _ in range(20):
            action = actions_for(one, rng)
            assert steps_differ(one.step(action), two.step(action)) is None


def test_threads_are_measured_and_not_more_than_envs(monkeypatch):
    with closing(make_v5(EnvConfig(env="Hopper-v5"), 3, 1)) as envs:
        times = iter([1.0, 0.95, 1.0, 0.5])
        monkeypatch.setattr(MujocoEnvs, "_seconds", lambda self: next(times))
        envs.use_threads(16, measure=True)
        assert envs.threads == 1  # the gain was too small
        envs.use_threads(16, measure=True)
        assert envs.threads == 3
        monkeypatch.undo()
        envs.use_threads(2, measure=True)  # really measured


def test_rows_are_summed_as_one_is():
    rng = np.random.default_rng(0)
    assert serving.functions_differ(rng) is None
    for num in (1, 2, 8, 16, 33):
        for size in (1, 2, 6, 8, 17, 84, 300):
            rows = rng.standard_normal((num, size)).astype(np.float32)
            assert same_bits(sum_of_squares(rows), np.array([np.sum(np.square(row)) for row in rows]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"wrappers": ("FlattenObservation",)}, "Gymnasium's Hopper-v5 is needed for wrappers"),
            ({"frame_stack": 2}, "is needed for frame_stack"),
            ({"workers": 1}, "is needed for workers"),
            ({"env_kwargs": {"healthy_reward": np.float64(1.0)}}, "healthy_reward=np.float64"),
            ({"env_kwargs": {"terminate_when_unhealthy": 1}}, "terminate_when_unhealthy=1"),
            ({"env_kwargs": {"healthy_z_range": [0.7]}}, "healthy_z_range"),
            ({"env_kwargs": {"render_mode": "human"}}, "'render_mode', which only Gymnasium's Hopper-v5 may know"),
        ],
    )
    def test_settings(self, config, reason):
        config = EnvConfig(env="Hopper-v5", **config)
        assert reason in why_not(config)
        assert reason in serves(config)[1]

    def test_other_envs_have_no_reason(self):
        assert serves(EnvConfig(env="CartPole-v1")) == (False, "")
        assert serves(EnvConfig(env="Hopper-v4")) == (False, "")

    def test_a_model_that_does_not_fit_the_task(self):
        together, reason = serves(EnvConfig(env="Walker2d-v5", env_kwargs={"xml_file": "inverted_pendulum.xml"}))
        assert not together
        assert "the comparison with Gymnasium's failed" in reason

    def test_a_model_of_which_there_is_no_batch(self, monkeypatch):
        def refuse(*_, **__):
            raise NoBatch("MuJoCo cannot make a batch of this model: too odd")

        monkeypatch.setattr(side_by_side, "_COMPARED", {})
        monkeypatch.setattr("surefoot.envs.mujoco.envs.Simulations", refuse)
        config = EnvConfig(env="Hopper-v5")
        assert serves(config) == (False, "MuJoCo cannot make a batch of this model: too odd")
        assert backends.backend_of("Hopper-v5").make_many(config, 2, 0, native=True) is None

    def test_a_difference(self, monkeypatch):
        monkeypatch.setattr(side_by_side, "_COMPARED", {})
        monkeypatch.setattr(serving.HalfCheetah, "hidden", 2)
        assert "HalfCheetah" in serves(EnvConfig(env="HalfCheetah-v5"))[1]

    def test_a_mujoco_without_a_batch(self, monkeypatch):
        real = import_module

        def older(name):
            if name == "mujoco._batch":
                raise ImportError(name)
            return real(name)

        monkeypatch.setattr(batch, "import_module", older)
        batch.batch_library.cache_clear()
        try:
            assert 'has no batch; pip install "mujoco>=3.17,<4"' in serves(EnvConfig(env="Hopper-v5"))[1]
            assert any("has no batch" in warning for warning in examine()["warnings"])
        finally:
            batch.batch_library.cache_clear()

    def test_no_mujoco(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "mujoco", None)
        batch.batch_library.cache_clear()
        try:
            assert "MuJoCo cannot be imported" in serves(EnvConfig(env="Hopper-v5"))[1]
        finally:
            batch.batch_library.cache_clear()

    def test_threads_that_the_system_refuses(self, monkeypatch):
        with closing(make_v5(EnvConfig(env="Hopper-v5"), 2, 1)) as envs:

            def refuse(*_, **__):
                raise NoBatch("no more threads")

            monkeypatch.setattr("surefoot.envs.mujoco.envs.Simulations", refuse)
            envs.use_threads(2, measure=False)
            assert envs.threads == 1
            envs.reset()

    def test_a_callback_in_python(self):
        mujoco = import_module("mujoco")
        mujoco.set_mjcb_control(lambda model, data: None)
        try:
            assert "the physics callback mjcb_control is installed" in serves(EnvConfig(env="Hopper-v5"))[1]
        finally:
            mujoco.set_mjcb_control(None)

    def test_a_field_that_there_is_not(self):
        with closing(make_v5(EnvConfig(env="Hopper-v5"), 1, 0)) as envs, pytest.raises(NoBatch, match="nonsense"):
            envs.sims.field("nonsense")


SHORT = {
    "preset": "none",
    "progress": False,
    "seed": 3,
    "num_envs": 3,
    "rollout_length": 16,
    "num_minibatches": 2,
    "num_epochs": 2,
    "total_steps": 480,
    "max_episode_steps": 20,
    "eval_episodes": 1,
    "normalize_observations": True,
}


def train(path, env="Hopper-v5", **more):
    return surefoot.train(env, "ppo", run_dir=path, **SHORT | more)


def bytes_of(run):
    last = max((run.path / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    return (run.path / "metrics.jsonl").read_bytes(), (last / "policy.safetensors").read_bytes()


def test_a_run_is_the_same_as_with_gymnasiums_envs(tmp_path, monkeypatch, capsys):
    ours = train(tmp_path / "ours", progress=True)
    assert "MuJoCo steps the envs of this run together, on 1 thread" in capsys.readouterr().out
    monkeypatch.setattr(serving, "why_not", lambda config: "a reason")
    theirs = train(tmp_path / "theirs", progress=True)
    assert "note: the envs are stepped one by one, which is slower: a reason" in capsys.readouterr().out
    assert bytes_of(ours) == bytes_of(theirs)


def test_a_run_of_the_ordinary_envs_is_resumed_by_the_batch_to_the_same_bytes(tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", total_steps=960)
    with monkeypatch.context() as patched:
        patched.setattr(serving, "why_not", lambda config: "a reason")
        half = train(tmp_path / "half")
    resumed = surefoot.resume(half, total_steps=960, progress=False)
    assert bytes_of(resumed)[1] == bytes_of(whole)[1]


def test_workers_are_not_needed():
    config = resolve("Hopper-v5", "ppo", "none", None, {"workers": "auto", "num_envs": 4})
    settled, (message,) = settle_workers(config)
    assert settled.env.workers == 0
    assert "MuJoCo steps the envs together" in message
    backend = backends.backend_of("Hopper-v5")
    assert backend.make_many(EnvConfig(env="Hopper-v5"), 2, 0, native=False) is None


class TestErrors:
    def test_actions(self):
        with closing(make_v5(EnvConfig(env="Hopper-v5"), 2, 0)) as envs:
            with pytest.raises(EnvError, match="before its first reset"):
                envs.step(np.zeros((2, 3), np.float32))
            envs.reset()
            with pytest.raises(ValueError, match=r"float32 \(2, 3\), not float64 \(2, 3\)"):
                envs.step(np.zeros((2, 3)))
            with pytest.raises(ValueError, match=r"not float32 \(3, 3\)"):
                envs.step(np.zeros((3, 3), np.float32))

    def test_numbers_that_are_not_finite_name_the_env(self, monkeypatch):
        with closing(make_v5(EnvConfig(env="Hopper-v5"), 2, 0, 4)) as envs:
            envs.reset()
            monkeypatch.setattr(envs.task, "reward", lambda action: np.array([0.0, np.nan]))
            envs.task.unhealthy = np.zeros(2, np.bool_)
            with pytest.raises(NonFiniteError, match=r"reward of Hopper-v5 \(env 5, seed \d+, episode 0, step 1\)"):
                envs.step(np.zeros((2, 3), np.float32))

    def test_arrays_outlive_their_envs(self):
        envs = make_v5(EnvConfig(env="Hopper-v5"), 2, 0)
        envs.reset()
        kept = envs.sims.qpos
        before = kept.copy()
        envs.close()
        envs.close()
        del envs
        assert same_bits(np.ascontiguousarray(kept), before)

    def test_a_simulation_that_fails(self):
        mujoco = import_module("mujoco")
        sims = Simulations(mujoco.MjModel.from_xml_string("<mujoco/>"), 2)
        sims._check(0)
        sims.step(1)
        sims.step(1, np.array([1], np.int32))
        assert sims.field("time").tolist() == [0.002, 0.004]


def test_models_that_no_user_can_change_leave_no_log_behind(tmp_path, monkeypatch, capfd):
    """MuJoCo finds deprecated attributes in Gymnasium's models; it would print it and write it into a file."""
    monkeypatch.chdir(tmp_path)
    make_env(EnvConfig(env="HalfCheetah-v5")).close()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
