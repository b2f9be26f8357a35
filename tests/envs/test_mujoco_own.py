"""A MuJoCo task of the user's own: the example of the docs, trained, resumed, evaluated, and tasks with faults."""

import re
from contextlib import closing
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")

import surefoot
from surefoot.envs.backends import backend_of
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.mujoco import MujocoTask, own
from surefoot.envs.mujoco.envs import MujocoEnvs
from surefoot.envs.mujoco.own import many_envs
from surefoot.envs.side_by_side import same_bits, steps_differ
from surefoot.errors import EnvError, UsageError
from surefoot.user_code import load_object

ROOT = Path(__file__).parents[2]
SWING = f"{ROOT / 'examples' / 'swing.py'}:Swing"
SHORT = {"preset": "none", "progress": False, "seed": 1, "num_envs": 4, "rollout_length": 32, "eval_episodes": 2}


def together(config, num_envs=3, seed=0):
    envs = backend_of(config.env).make_many(config, num_envs, seed, native=True)
    assert isinstance(envs, MujocoEnvs)
    return envs


def test_the_page_shows_the_example():
    page = (ROOT / "docs" / "mujoco.md").read_text()
    assert re.findall(r"```python\n(.*?)```", page, re.DOTALL) == [(ROOT / "examples" / "swing.py").read_text()]


@pytest.mark.parametrize("limit", [None, 7])
def test_many_envs_are_the_same_as_one_by_one(limit):
    config = EnvConfig(env=SWING, env_kwargs={"effort_cost": 0.25}, max_episode_steps=limit)
    with closing(together(config)) as ours, closing(GymEnvs(lambda: make_env(config), 3, 0)) as theirs:
        assert ours.time_limit == theirs.time_limit == (limit or 200)
        assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
        assert same_bits(ours.reset(), theirs.reset())
        rng, ended = np.random.default_rng(0), 0
        for _ in range(20):
            action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
            step, twin = ours.step(action), theirs.step(action)
            assert steps_differ(step, twin) is None
            ended += len(step.final_info)
        assert ended == (0 if limit is None else 6)


def test_train_resume_and_evaluate(tmp_path):
    whole = surefoot.train(SWING, run_dir=tmp_path / "whole", total_steps=1024, log_info=("height",), **SHORT)
    half = surefoot.train(SWING, run_dir=tmp_path / "half", total_steps=512, log_info=("height",), **SHORT)
    resumed = surefoot.resume(half, total_steps=1024, progress=False)
    weights = [run.path / "checkpoints" / "1024" / "policy.safetensors" for run in (whole, resumed)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert "info/height" in {name for row in whole.metrics for name in row}
    assert len(surefoot.evaluate(surefoot.load(whole), SWING, episodes=2).returns) == 2


def test_a_class_in_python(tmp_path):
    run = surefoot.train(load_object(SWING, "env"), run_dir=tmp_path / "run", total_steps=256, **SHORT)
    assert run.result["total_steps"] == 256


def test_settings_that_need_envs_one_by_one():
    assert many_envs(EnvConfig(env=SWING, frame_stack=2), load_object(SWING, "env"), 2, 0) is None
    assert many_envs(EnvConfig(env=SWING), lambda: None, 2, 0) is None
    backend = backend_of(SWING)
    together, why = backend.steps_together(EnvConfig(env=SWING, frame_stack=2))
    assert not together
    assert why == "frame_stack cannot be combined with the batch"
    assert backend.steps_together(EnvConfig(env=SWING)) == (True, "MuJoCo steps the envs together")
    assert backend.takes_render_mode(SWING)
    assert make_env(EnvConfig(env=SWING, frame_stack=2)).observation_space.shape == (2, 3)


class Still(MujocoTask):
    """A ball that nothing moves."""

    xml = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    time_limit = 3

    def observe(self):
        return self.qvel

    def reward(self, action):
        return np.zeros(self.num_envs)


def faulty(**methods):
    return type("Faulty", (Still,), methods)


def raises(*_):
    raise RuntimeError("oh")


def weightless(self, *_):
    self.model.opt.gravity[:] = 0
    return np.zeros(self.model.nq), np.zeros(self.model.nv)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (
            {"reward": lambda self, action: np.zeros((3, 3))},
            r"reward returned float64 \(3, 3\); .* each env",
        ),
        ({"reward": lambda self, action: None}, "reward returned None; it must return a number for each env"),
        ({"reward": lambda self, action: np.zeros(3) * 1j}, r"reward returned complex128 \(3,\)"),
        ({"terminated": lambda self: np.zeros(3)}, r"terminated returned float64 \(3,\); it must return a bool"),
        ({"reward": raises}, "step of Faulty raised RuntimeError: oh"),
        ({"observe": lambda self: self.qvel[:, : 3 if self.num_envs > 1 else 6]}, r"observes \(3, 3\) numbers"),
        (
            {"start": lambda self, env, rng: (np.zeros(2), np.zeros(6))},
            r"Faulty.start returned qpos and qvel of .*, not ",
        ),
        ({"start": lambda self, env, rng: np.zeros(7)}, r"start returned ndarray; .* two arrays, \(qpos, qvel\)"),
        ({"start": lambda self, env, rng: (np.full(7, np.nan), np.zeros(6))}, "not finite or too large: qpos .nan"),
        ({"start": lambda self, env, rng: (np.full(7, 1e11), np.zeros(6))}, "not finite or too large"),
        ({"info": lambda self, env: None}, "Faulty.info returned NoneType; it must return a dict"),
        ({"info": raises}, r"info of Faulty \(env 0, seed \d+, episode 0, step 3\) raised RuntimeError: oh"),
    ],
)
def test_faults_of_a_task_name_it(methods, message):
    task = faulty(**methods)
    config = EnvConfig(env="", max_episode_steps=None)

    def play():
        envs = many_envs(config, task, 3, 0)
        envs.reset()
        for _ in range(3):
            envs.step(np.zeros((3, 0), np.float32))

    with pytest.raises(EnvError, match=message):
        play()


def test_without_mujoco_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(own, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r'Still needs MuJoCo: pip install "surefoot\[mujoco\]"'):
        many_envs(EnvConfig(env=""), Still, 3, 0)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"xml": ""}, "Faulty has no model; set xml to a file or to MJCF, or override make_model"),
        ({"xml": "nowhere.xml"}, r"xml='nowhere.xml', but .*nowhere.xml is not a file"),
        ({"xml": None}, "Faulty has no model"),
        ({"xml": "<mujoco><nothing/></mujoco>"}, "Faulty: MuJoCo cannot make a model of xml: .*nothing"),
        ({"frame_skip": 0}, "Faulty.frame_skip=0; it must be a whole number of at least 1"),
        ({"frame_skip": 2.5}, "Faulty.frame_skip=2.5; it must be"),
        ({"time_limit": 0}, "Faulty.time_limit=0; it must be"),
        ({"time_limit": True}, "Faulty.time_limit=True; it must be"),
        (
            {"make_model": lambda self: import_module("mujoco").MjSpec()},
            r"make_model returned MjSpec; .* an MjModel; spec.compile\(\)",
        ),
        ({"make_model": lambda self: None}, "make_model returned NoneType; it must return an MjModel"),
        ({"prepare": lambda self: self.sims.field("qveI")}, "qveI is not a field of MjData .* mean 'qvel'"),
        ({"prepare": weightless}, "Faulty changes its model in prepare or start.* Change it in make_model"),
        ({"start": weightless}, "Faulty changes its model in prepare or start"),
        ({"observe": lambda self: np.zeros(3)}, r"observe returned float64 \(3,\) for one env"),
    ],
)
def test_tasks_that_cannot_be_made(methods, message):
    with pytest.raises(UsageError, match=message):
        many_envs(EnvConfig(env=""), faulty(**methods), 3, 0)
