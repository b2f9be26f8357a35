"""Rollouts of envs that return tensors: those of the ordinary collector, without a look of the host in between."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from surefoot.engine.episodes import EpisodeTracker
from surefoot.envs.gym_envs import SeededEpisodes
from surefoot.envs.tensor_envs import TensorEnvs
from surefoot.envs.vector_envs import VectorEnvs
from surefoot.errors import EnvError, NonFiniteError, UsageError
from surefoot.policies.actions import build_actions
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Step
from tests.building import make_collector
from tests.helpers import NoiseEnv, ScriptedEnv
from tests.tensor_vector_envs import AsTensors, Drift, Guard, HostReads

MODES = pytest.mark.parametrize("mode", AutoresetMode)


def sync(make, mode, num_envs=3):
    return SyncVectorEnv([lambda i=i: SeededEpisodes(make(), 0, i) for i in range(num_envs)], autoreset_mode=mode)


def adapted(envs):
    return TensorEnvs(envs, envs.reset(seed=1))


def collector(envs, length, policy=None, info_keys=(), normalize=False, **kwargs):
    torch.manual_seed(0)
    masked = bool(envs.layout.mask_size)
    made = ActorCritic(envs.observation_space, envs.action_space, PolicyConfig(**(policy or {})), masked=masked)
    kwargs["reward_gamma"] = 0.9 if normalize else None
    return make_collector(envs, made, length, log_info=info_keys, **kwargs)


def both(make, mode, length, **kwargs):
    """The same envs through the ordinary collector and through this one."""
    ordinary = sync(make, mode)
    return (
        collector(VectorEnvs(ordinary, 1, ordinary.reset(seed=1)), length, **kwargs),
        collector(adapted(AsTensors(sync(make, mode))), length, **kwargs),
    )


def assert_same(one, other):
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("final_index", "final_inputs", "final_memory"):
            continue  # NEXT_STEP needs none: the final observation is among the observations
        if field.name == "context":
            assert (left is None) == (right is None)
            if left is not None:
                assert torch.equal(left.start, right.start)
                torch.testing.assert_close(left.memory, right.memory)
        elif field.name in ("value", "next_value"):
            torch.testing.assert_close(left, right)
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right), field.name
        else:
            assert left == right


@pytest.mark.sampled(9)
@MODES
@pytest.mark.parametrize("policy", [{}, {"memory": "gru", "memory_size": 4}, {"memory": "lstm", "memory_size": 4}])
@pytest.mark.parametrize("how", [{}, {"reset_each_rollout": True}, {"episodes_per_env": 2}], ids=str)
def test_the_rollouts_are_those_of_the_ordinary_collector(mode, policy, how):
    settings = {"policy": policy, "info_keys": ("time",), "normalize": True, "reward_scale": 0.5}
    ordinary, tensor = both(NoiseEnv, mode, 9, **settings, **how)
    # After whole episodes both are reset, but this one has stepped on for longer and begins other episodes.
    for _ in range(1 if "episodes_per_env" in how else 3):
        assert_same(ordinary.collect(0.5), tensor.collect(0.5))
        assert ordinary.tracker.take() == tensor.tracker.take()
    assert torch.equal(ordinary.generator.get_state(), tensor.generator.get_state())
    if "episodes_per_env" not in how:
        np.testing.assert_array_equal(ordinary.tracker.ret, tensor.tracker.ret)


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_episodes_are_counted_on_the_device_as_on_the_host(steps):
    rng = np.random.default_rng(steps)
    counted, other = EpisodeTracker(6), EpisodeTracker(6)
    for _ in range(3):
        reward, shape = rng.normal(size=(steps, 6)), (steps, 6)
        terminated, valid = rng.random(shape) < 0.15, rng.random(shape) < 0.9
        ended = terminated | (rng.random(shape) < 0.1)
        for t in range(steps):
            last = {int(i): {} for i in np.flatnonzero(ended[t])}
            counted.add(Step(np.zeros(0), reward[t], terminated[t], ended[t], valid[t], final_info=last))
        made = collector(adapted(Drift(num_envs=6)), 2).storage
        made.tracker = other
        made.count_on_device(*(torch.from_numpy(x) for x in (reward, terminated, ended, valid)))
        np.testing.assert_allclose(other.ret, counted.ret, atol=1e-12)
        np.testing.assert_array_equal(other.length, counted.length)
        mine, theirs = other.take(), counted.take()
        assert [(e.env, e.length, e.truncated) for e in mine] == [(e.env, e.length, e.truncated) for e in theirs]
        np.testing.assert_allclose([e.ret for e in mine], [e.ret for e in theirs], atol=1e-12)


def test_whole_episodes_go_on_rollout_after_rollout():
    made = collector(adapted(AsTensors(sync(NoiseEnv, AutoresetMode.NEXT_STEP))), 40, episodes_per_env=3)
    for _ in range(3):
        rollout = made.collect()
        assert (rollout.done & rollout.valid).sum(0).tolist() == [3, 3, 3]
        assert len(made.tracker.take()) == 9
        assert len(rollout.reward) <= 20  # three episodes of at most six steps, with a reset between two


@MODES
def test_the_first_reset_is_seeded_once(mode):
    envs = AsTensors(sync(NoiseEnv, mode))
    made = collector(adapted(envs), 4)
    made.collect()
    made.collect()
    assert envs.seeds == [1]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_the_value_of_a_truncation_is_that_of_its_final_observation(mode):
    envs = adapted(Drift(mode, num_envs=2, length=3))
    made = collector(envs, 7)
    rollout = made.collect()
    cut = rollout.truncated & ~rollout.terminated
    assert cut.sum() == rollout.final_index.numel() >= 4
    for t, n in cut.nonzero().tolist():
        drawn = rollout.action[t, n].clamp(-1, 1)
        final = torch.stack([rollout.obs[t, n, 0] + drawn[0], torch.tensor(3.0)])
        with torch.no_grad():
            torch.testing.assert_close(rollout.next_value[t, n], made.policy.value(final))
        assert rollout.obs[t + 1, n].tolist() == [0, 0]


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_host_reads_nothing_while_a_rollout_is_collected(mode, memory, normalize, monkeypatch):
    guard = Guard(6, monkeypatch)
    envs = adapted(Drift(mode, guard=guard))
    width = {} if memory == "none" else {"memory_size": 4}
    policy = {"memory": memory, "normalize_observations": normalize, **width}
    made = collector(envs, 6, policy=policy, info_keys=("height",))
    for _ in range(3):
        made.collect()
    assert guard.rollouts == 3
    assert made.tracker.take()


@pytest.mark.parametrize(
    "read", [lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.numpy(), torch.nonzero]
)
def test_the_guard_itself_sees_a_read(read, monkeypatch):
    class Careless(TensorEnvs):
        def step(self, action, active=None):
            step = super().step(action, active)
            read(step.obs)
            return step

    guard = Guard(4, monkeypatch)
    envs = Drift(guard=guard)
    made = collector(Careless(envs, envs.reset(seed=0)), 4)
    try:
        with pytest.raises(HostReads):
            made.collect()
    finally:
        guard.__exit__(None, None, None)
        guard.active = False


ACTIONS = [
    spaces.Discrete(3),
    spaces.Discrete(3, start=-4),
    spaces.MultiDiscrete([[2, 3], [4, 5]]),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-1.0, 0.5, (2, 2), np.float32),
    spaces.Box(-2.0, np.array([1.0, 9.0]), (2,), np.float64),
    spaces.Box(-np.inf, np.inf, (), np.float32),
    spaces.Dict(a=spaces.Discrete(3), b=spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2)])),
]


@pytest.mark.parametrize("bounds", ["clip", "tanh", "beta"])
@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_tensors_are_sent_as_arrays_are(space, bounds, monkeypatch):
    if bounds != "clip" and space.shape == () and isinstance(space, spaces.Box):
        pytest.skip("unbounded")
    model = build_actions(space, bounds)
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(5, model.num_params, generator=generator)
    action = model.draw(params, model.noise((5,), generator))
    expected = model.to_vector_env(action.numpy())
    send = model.tensor_sender(torch.device("cpu"))
    guard = Guard(2, monkeypatch)
    guard.step()
    sent = send(action)
    guard.step()

    def compare(mine, theirs):
        if isinstance(theirs, dict):
            assert list(mine) == list(theirs)
            mine, theirs = tuple(mine.values()), tuple(theirs.values())
        if isinstance(theirs, tuple):
            for left, right in zip(mine, theirs, strict=True):
                compare(left, right)
            return
        assert mine.numpy().dtype == theirs.dtype
        assert mine.numpy().shape == theirs.shape
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-6)

    compare(sent, expected)


@pytest.mark.parametrize("bounds", ["clip", "tanh", "beta"])
@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_drawing_needs_no_host_read(space, bounds, monkeypatch):
    if bounds != "clip" and space.shape == () and isinstance(space, spaces.Box):
        pytest.skip("unbounded")
    model = build_actions(space, bounds)
    generator = torch.Generator().manual_seed(0)
    params, noise = torch.randn(5, model.num_params, generator=generator), model.noise((5,), generator)
    guard = Guard(2, monkeypatch)
    guard.step()
    model.draw(params, noise)
    guard.step()
    assert guard.rollouts == 1


@pytest.mark.parametrize(
    ("fault", "what"), [("obs", "observation"), ("reward", "reward"), ("final", "final observation")]
)
def test_a_value_that_is_not_finite_names_its_env_and_step(fault, what):
    class Broken(Drift):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            if fault == "final":
                info["final_obs"][2] = torch.nan
            elif self.t[2] == 4:
                {"obs": obs, "reward": reward}[fault][2] = torch.nan
            return obs, reward, terminated, truncated, info

    made = collector(adapted(Broken()), 8)
    with pytest.raises(NonFiniteError, match=f"^{what} of vector env, index 2 is not finite, at step [1-6]"):
        made.collect()


def test_same_step_without_a_final_observation_is_refused():
    class Silent(Drift):
        def step(self, action):
            return (*super().step(action)[:4], {})

    with pytest.raises(UsageError, match=r"env 0 was truncated at step 4 .*info\['final_obs'\]"):
        collector(adapted(Silent(num_envs=4, length=5)), 8).collect()


def test_steps_that_end_nothing_need_no_final_observation():
    class Sparing(Drift):
        def step(self, action):
            *rest, info = super().step(action)
            return (*rest, info if bool(self.ended.any()) else {})

    full = collector(adapted(Drift()), 8).collect()
    assert_same(full, collector(adapted(Sparing()), 8).collect())


def test_an_episode_without_an_end_is_an_error_for_whole_episodes():
    made = collector(adapted(Drift(length=50)), 8, episodes_per_env=1)
    made.policy.actor.head.bias.data.zero_()
    with pytest.raises(EnvError, match="ran past the env's own limit of 8 steps"):
        made.collect()


class Picky(ScriptedEnv):
    """Allows only the action that it shows."""

    def __init__(self, in_obs, empty=False):
        super().__init__(rewards=(1.0,) * 4)
        self.in_obs, self.empty = in_obs, empty
        self.action_space = spaces.Discrete(3)
        if in_obs:
            parts = {"observation": self.observation_space, "action_mask": spaces.MultiBinary(3)}
            self.observation_space = spaces.Dict(parts)

    def shown(self, obs, info):
        mask = np.eye(3, dtype=np.int8)[(self.episode + self.time) % 3]
        if self.time == len(self.rewards) or (self.empty and self.time == 2):
            mask[:] = 0  # nobody acts here, or should not have to
        return (
            ({"observation": obs, "action_mask": mask}, info) if self.in_obs else (obs, {**info, "action_mask": mask})
        )

    def reset(self, **kwargs):
        return self.shown(*super().reset(**kwargs))

    def step(self, action):
        assert action == (self.episode + self.time) % 3
        obs, reward, terminated, truncated, info = super().step(action)
        obs, info = self.shown(obs, info)
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("in_obs", [False, True])
def test_masks_are_kept_to(mode, in_obs):
    envs = adapted(AsTensors(sync(lambda: Picky(in_obs), mode)))
    assert envs.layout.mask_size == 3
    rollout = collector(envs, 11).collect()
    assert rollout.valid.sum() > 20  # the envs assert that every action was legal


def test_a_mask_without_a_legal_action_names_env_and_step():
    envs = adapted(AsTensors(sync(lambda: Picky(True, empty=True), AutoresetMode.DISABLED)))
    envs.envs.envs.envs[1].unwrapped.empty = False
    made = collector(envs, 2)
    made.collect()
    with pytest.raises((EnvError, AssertionError)):
        made.collect()


def test_state_goes_through_a_checkpoint():
    made, other = (collector(adapted(Drift()), 6, normalize=True) for _ in range(2))
    assert other.load_state_dict(made.state_dict()) == []
    made.collect()
    assert other.load_state_dict(made.state_dict()) == [0, 1, 2, 3]
    assert torch.equal(other.generator.get_state(), made.generator.get_state())
    assert other.reward_normalizer.moments.count == made.reward_normalizer.moments.count
