"""An asymmetric critic: who sees what, on both engines, and what is refused."""

import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.api import env_name, resume
from surefoot.cli.main import main
from surefoot.engine.registry import choose_engine
from surefoot.errors import UsageError
from surefoot.policies.privileged import seen_space
from surefoot.spaces import plain
from surefoot.spaces.layout import Layout
from surefoot.spaces.rows import RowLayout
from tests.building import CONTINUOUS, DISCRETE, make_learner, make_policy, make_rollout

F32 = np.float32
SPACE = spaces.Dict(
    {
        "truth": spaces.Dict({"mass": spaces.Box(-1, 1, (2,), F32), "mode": spaces.Discrete(3)}),
        "sensor": spaces.Box(-1, 1, (3,), F32),
        "wind": spaces.Box(-1, 1, (1,), F32),
    }
)
ROWS = {leaf.path: leaf.span for leaf in Layout(SPACE).leaves}  # Gymnasium may sort the keys


def rows(count=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand((count, 7), generator=generator)
    found[:, ROWS["truth/mode"]] = torch.randint(0, 3, (count, 1), generator=generator).float()
    return found


@pytest.mark.parametrize(
    ("names", "hidden"),
    [(("truth",), ("truth/mass", "truth/mode")), (("truth/mass", "wind"), ("truth/mass", "wind"))],
    ids=str,
)
def test_the_actor_does_not_see_what_only_the_critic_sees(names, hidden):
    policy = make_policy(observation_space=SPACE, critic_obs=names)
    x = rows()
    params, value = policy.action_params(x), policy.value(x)
    for part, columns in ROWS.items():
        other = x.clone()
        other[:, columns] = rows(seed=1)[:, columns]
        assert torch.equal(policy.action_params(other), params) == (part in hidden), part
        assert not torch.equal(policy.value(other), value), part
    assert f"only the critic sees: {', '.join(names)}" in policy.describe()


def test_the_critics_first_layer_by_hand():
    """A linear critic whose weights are 1, 2, 3, … over the actor's parts and then its own."""
    policy = make_policy(observation_space=SPACE, critic_obs=("truth",), hidden_sizes=())
    with torch.no_grad():
        policy.critic.head.weight.copy_(torch.arange(1.0, 10.0)[None])
    row = torch.zeros(1, 7)
    parts = {"truth/mass": (0.5, 0.25), "truth/mode": (2,), "sensor": (0.1, 0.2, 0.3), "wind": (0.4,)}
    for name, numbers in parts.items():
        row[0, ROWS[name]] = torch.tensor(numbers).float()
    by_hand = 0.1 + 2 * 0.2 + 3 * 0.3 + 4 * 0.4 + 5 * 0.5 + 6 * 0.25 + 9  # sensor, wind, mass, one-hot of mode 2
    assert policy.value(row).item() == pytest.approx(by_hand)
    assert policy.actor.head.in_features == 4


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS], ids=["discrete", "box"])
@pytest.mark.parametrize("name", ["ppo", "trpo", "a2c"])
@pytest.mark.parametrize("other", ["native", "cuda"])
def test_an_update_is_the_same_on_every_engine(name, space, other):
    found = []
    for engine in ("torch", other):
        algorithm = ALGORITHMS[name](ALGORITHMS[name].config_type(num_envs=8))
        policy = make_policy(space, observation_space=SPACE, critic_obs=("truth",))
        learner = make_learner(engine, policy, algorithm, seed=1)
        rollout = make_rollout(policy, steps=16, num_envs=8)
        metrics = algorithm.update(learner, rollout)
        assert learner.used == {engine}
        found.append((metrics, learner.flat.vector.clone()))
    (theirs, weights), (ours, vector) = found
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key
    assert (vector - weights).norm() < 2e-3 * weights.norm()


def test_an_encoder_that_learns_only_for_the_critic_is_left_to_pytorch():
    space = spaces.Dict({"map": spaces.Box(0, 255, (8, 8, 3), np.uint8), "pose": spaces.Box(-1, 1, (3,), F32)})
    policy = make_policy(observation_space=space, critic_obs=("map",))
    assert not policy.shared
    assert not list(policy.encoder.parameters())
    algorithm = ALGORITHMS["ppo"](ALGORITHMS["ppo"].config_type())
    assert choose_engine("auto", policy, algorithm, None)[0].name == "torch"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("truht",), r"critic_obs names 'truht', which is not a part of the observation; did you mean 'truth'\? \(its"),
        (("truth/mas",), "did you mean 'truth/mass'"),
        (("truth", "sensor", "wind"), "the actor would see nothing"),
    ],
)
def test_a_name_that_makes_no_sense_is_explained(given, why):
    with pytest.raises(UsageError, match=why):
        make_policy(observation_space=SPACE, critic_obs=given)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"observation_space": spaces.Box(-1, 1, (3,), F32)}, "names parts of a Dict observation, but this env shows"),
        ({"observation_space": spaces.Discrete(3)}, "names parts of a Dict observation"),
        ({"observation_space": SPACE, "shared_trunk": True}, "critic_obs needs a critic of its own"),
        ({"observation_space": SPACE, "memory": "gru"}, "share a memory"),
    ],
    ids=["box", "discrete", "trunk", "memory"],
)
def test_what_cannot_be_divided_is_explained(config, why):
    with pytest.raises(UsageError, match=why):
        make_policy(critic_obs=("truth",), **config)


def test_a_wrapper_can_be_given_as_a_class():
    """It is how parts are hidden from the actor; its `spec` is a property, and not a spec."""
    assert env_name(gym.ObservationWrapper) == "ObservationWrapper"
    assert env_name(lambda: None) == "<lambda>"


class Hidden(gym.Env):
    """A number that only the critic sees decides the reward, whatever is done; the sensor says what to do."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {"luck": spaces.Box(-1, 1, (1,), F32), "sensor": spaces.Box(-1, 1, (2,), F32)}
        )
        self.action_space = spaces.Discrete(2)

    def _obs(self):
        self.seen = {"luck": self.np_random.uniform(-1, 1, 1).astype(F32), "sensor": np.zeros(2, F32)}
        self.seen["sensor"][int(self.np_random.integers(2))] = 1.0
        return self.seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        reward = float(self.seen["sensor"][action] + 3.0 * self.seen["luck"][0])
        self.time += 1
        return self._obs(), reward, self.time == 10, False, {}


def test_a_run_trains_evaluates_and_resumes(tmp_path):
    """The critic explains what luck decides; without it, it cannot."""
    more = {"preset": "none", "seed": 1, "progress": False, "num_envs": 4, "rollout_length": 64, "gae_lambda": 0.0}
    more |= {"gamma": 0.0, "learning_rate": 3e-3, "num_epochs": 5, "num_minibatches": 4, "eval_episodes": 2}
    env = f"{__file__}:Hidden"
    whole = surefoot.train(env, run_dir=tmp_path / "whole", critic_obs=["luck"], total_steps=4096, **more)
    assert whole.result["engine"] == "native"
    assert whole.metrics[-1]["explained_variance"] > 0.8
    surefoot.train(env, run_dir=tmp_path / "half", critic_obs=["luck"], total_steps=2048, **more)
    longer = resume(tmp_path / "half", total_steps=4096, progress=False)
    last = [next(run.path.glob("checkpoints/*4096/policy.safetensors")) for run in (whole, longer)]
    assert last[0].read_bytes() == last[1].read_bytes()
    agent = surefoot.load(whole)
    assert surefoot.evaluate(agent, env, episodes=2, seed=5).episodes == 2
    light = surefoot.load(whole, backend="numpy")
    for sensor in np.eye(2, dtype=F32):  # where the policy is used, nobody knows the luck
        known = {"sensor": sensor, "luck": np.ones(1, F32)}
        assert light.predict({"sensor": sensor})[0] == light.predict(known)[0] == agent.predict(known)[0]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
def test_an_export_has_only_what_the_actor_sees(tmp_path, capsys):
    more = {"preset": "none", "progress": False, "num_envs": 4, "rollout_length": 64, "eval_episodes": 2}
    more |= {"layer_norm": True, "normalize_observations": True}
    run = surefoot.train(f"{__file__}:Hidden", run_dir=tmp_path / "run", critic_obs=["luck"], total_steps=512, **more)
    assert main(["export", str(run.path), "--to", "c", "--out", str(tmp_path / "c")]) == 0
    assert "parity on 4,096 recorded observations" in capsys.readouterr().out
    header = (tmp_path / "c" / "surefoot_policy.h").read_text(encoding="utf-8")
    assert "SUREFOOT_POLICY_OBSERVATION 2 " in header
    assert "luck" not in header


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ({"a/x"}, {"a/x"}),
        ({"a/x", "t/1"}, {"a/x", "t/0", "t/1"}),  # a Tuple's parts are known by their position
        ({"b"}, {"b"}),
        ({"b", "bc"}, {"b", "bc"}),
    ],
)
def test_a_space_without_what_the_critic_sees(seen, left):
    box = plain.Box(np.zeros(2, F32), np.ones(2, F32))
    space = plain.Dict(
        {"a": plain.Dict({"x": box, "y": box}), "t": plain.Tuple((box, box)), "b": box, "bc": box, "action_mask": box}
    )
    found = seen_space(space, seen)
    assert {leaf.path for leaf in RowLayout(found).leaves} == left | {"action_mask"}
