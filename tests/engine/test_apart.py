"""Workers that act on their own: the bytes of one process, and workers that are lost on the way."""

import os
import signal
import time
from contextlib import closing

import numpy as np
import pytest
import torch

from surefoot.engine.episodes import EpisodeTracker
from surefoot.engine.native.apart import WorkerStepping
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.workers import WorkerEnvs
from surefoot.envs.workers import rollouts as rollouts_module
from surefoot.envs.workers.supervisor import Supervisor
from surefoot.errors import EnvError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.types import Step
from tests import worker_envs
from tests.building import make_collector, make_learner

FILE = worker_envs.__file__


def own(name, **kwargs):
    return EnvConfig(env=f"{FILE}:{name}", env_kwargs=kwargs)


def collector(envs, length=23, normalize=False, log_info=(), **settings):
    torch.manual_seed(3)
    masked = envs.layout.mask_size > 0
    config = PolicyConfig(normalize_observations=normalize, **settings)
    policy = ActorCritic(envs.observation_space, envs.action_space, config, masked=masked)
    if normalize:
        policy.normalizer.merge(torch.randn(50, *envs.layout.shape, generator=torch.Generator().manual_seed(1)))
    return make_collector(
        envs, policy, length, engine="native", learner=make_learner("native", policy), log_info=log_info
    )


def same_rollout(a, b):
    for name in a.__slots__:
        x, y = getattr(a, name), getattr(b, name)
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            assert x.numpy().tobytes() == y.numpy().tobytes(), name
    if a.context is not None:
        assert torch.equal(a.context.start, b.context.start)
        assert torch.equal(a.context.memory, b.context.memory)


CASES = {
    "CartPole": (EnvConfig(env="CartPole-v1", max_episode_steps=30), {}),
    "normalised": (EnvConfig(env="Pendulum-v1", max_episode_steps=17), {"normalize": True}),
    "squashed": (EnvConfig(env="Pendulum-v1"), {"action_bounds": "tanh"}),
    "beta": (EnvConfig(env="Pendulum-v1"), {"action_bounds": "beta"}),
    "lstm": (EnvConfig(env="CartPole-v1", max_episode_steps=20), {"memory": "lstm"}),
    "gru": (EnvConfig(env="CartPole-v1", max_episode_steps=9), {"memory": "gru"}),
    "lives": (own("Lives"), {}),
    "masked": (own("Masked"), {}),
    "doubles": (own("Doubles"), {}),
    "wide": (own("Wide"), {"normalize": True}),
    "nested": (own("Nested"), {}),  # the parent acts: its actions are not one array
    "choices": (EnvConfig(env="FrozenLake-v1"), {}),  # and here, because it encodes the observations
}
ACTED_FOR = ("nested", "choices")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_workers_that_act_give_the_bytes_of_one_process(name):
    config, settings = CASES[name]
    with (
        closing(GymEnvs(lambda: make_env(config), 5, 5)) as here,
        closing(WorkerEnvs(config, 5, 5, 2)) as there,
    ):
        one, many = collector(here, **settings), collector(there, **settings)
        assert isinstance(many.stepping, WorkerStepping)
        for _ in range(4):
            same_rollout(one.collect(), many.collect())
            assert many.stepping.acts is (name not in ACTED_FOR)
            assert [vars_of(x) for x in one.tracker.take()] == [vars_of(x) for x in many.tracker.take()]
            same_state(one.state_dict(), many.state_dict())


def vars_of(episode):
    return (episode.env, episode.ret, episode.length, episode.info, episode.truncated)


def same_state(a, b):
    for name in ("ret", "length"):
        assert a["tracker"][name].tobytes() == b["tracker"][name].tobytes()
    assert torch.equal(a["last_obs"], b["last_obs"])
    assert torch.equal(a["noise"], b["noise"])
    assert a["envs"]["episode"] == b["envs"]["episode"]
    assert a["envs"]["steps"] == b["envs"]["steps"]
    for x, y in zip(a["envs"]["actions"], b["envs"]["actions"], strict=True):
        assert np.array_equal(x, y)


def test_infos_and_the_order_of_episodes_are_those_of_one_process():
    config = own("Told")
    with closing(GymEnvs(lambda: make_env(config), 5, 5)) as here, closing(WorkerEnvs(config, 5, 5, 3)) as there:
        one, many = (collector(envs, log_info=("seed",)) for envs in (here, there))
        one.collect(), many.collect()
        told = [vars_of(episode) for episode in many.tracker.take()]
        assert told == [vars_of(episode) for episode in one.tracker.take()]
        assert all(info["seed"] > 0 for _, _, _, info, _ in told)


def test_kernels_of_another_kind_are_not_used(monkeypatch):
    """The bytes of another instruction set would be others."""
    monkeypatch.setattr(rollouts_module, "variant", lambda: "v0")
    config = own("Noise")
    with closing(GymEnvs(lambda: make_env(config), 4, 5)) as here, closing(WorkerEnvs(config, 4, 5, 2)) as there:
        one, many = collector(here), collector(there)
        same_rollout(one.collect(), many.collect())
        assert not many.stepping.acts


def test_without_room_for_a_rollout_the_parent_acts(monkeypatch):
    def full(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(rollouts_module, "rollout_arrays", full)
    with closing(WorkerEnvs(own("Noise"), 4, 5, 2)) as envs:
        made = collector(envs)
        assert made.collect().valid.all()
        assert not made.stepping.acts


def test_two_collectors_may_share_the_workers():
    with closing(WorkerEnvs(own("Noise"), 4, 5, 2)) as envs:
        short, long = collector(envs, length=5), collector(envs, length=40)
        for made in (short, long, short, long):
            assert made.collect().valid.all()
            assert made.stepping.acts


def fatal(how, **kwargs):
    return own("Fatal", how=how, **kwargs)


def test_no_worker_imports_torch():
    with closing(WorkerEnvs(fatal("none"), 2, 5, 2)) as envs:
        made = collector(envs)
        assert not made.collect().obs[..., 1].any()
        assert made.stepping.acts


@pytest.mark.parametrize(
    ("how", "words"), [("kill", "was killed by SIGKILL"), ("stop", "did not answer"), ("hang", "did not answer")]
)
def test_a_lost_worker_is_named_with_its_step(how, words, tmp_path):
    config = fatal(how, at=3, episode=1, mark=str(tmp_path / "mark"))
    with closing(WorkerEnvs(config, 4, 5, 2, timeout=0.5)) as envs:
        made = collector(envs)
        where = r"in step of env (\d); it had env \1 \(seed \d+, episode 1, step 3\)"
        with pytest.raises(EnvError, match=rf"env worker \d of .*Fatal {words}.* {where}"):
            made.collect()
        with pytest.raises(EnvError, match=words):  # and it stays so
            made.collect()


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_worker_is_replaced_and_its_step_is_no_transition(how, memory, tmp_path):
    notices = []
    config = fatal(how, at=3, episode=1, mark=str(tmp_path / "mark"), length=8)
    with closing(WorkerEnvs(config, 4, 5, 2, timeout=0.5, restarts=1, notice=notices.append)) as envs:
        made = collector(envs, length=30, memory=memory)
        rollout = made.collect()
        assert len(notices) == 1
        ((t, lost),) = {(t, env // 2) for t, env in (~rollout.valid).nonzero().tolist()}
        assert t == 10  # 8 steps, then the third
        part = slice(2 * lost, 2 * lost + 2)
        assert rollout.truncated[t, part].all()
        assert not rollout.reward[t, part].any()
        assert rollout.obs[t, part, 0].tolist() == [2.0, 2.0]  # the last that was seen, and then a new episode
        assert rollout.obs[t + 1, part, 0].tolist() == [0.0, 0.0]
        assert rollout.final_index.tolist() == [4 * t + env for env in range(4)[part]]
        assert torch.equal(rollout.final_inputs, rollout.inputs[t, part])
        assert [episode.length for episode in made.tracker.take()] == [8] * 12
        assert made.collect().valid.all()


def test_a_worker_that_is_killed_between_two_rollouts_is_missed_by_the_next():
    with closing(WorkerEnvs(fatal("none"), 4, 5, 2, restarts=1)) as envs:
        made = collector(envs, length=10)
        made.collect()
        os.kill(envs.supervisor.workers[1].process.pid, signal.SIGKILL)
        rollout = made.collect()
        assert (~rollout.valid).nonzero().tolist() == [[0, 2], [0, 3]]
        assert rollout.obs[1, 2:, 0].tolist() == [0.0, 0.0]
        assert made.collect().valid.all()


def test_a_worker_that_is_lost_at_the_very_end_has_played_its_part(monkeypatch):
    """Its last step is complete, its report is not: the next rollout begins with its loss."""
    with closing(WorkerEnvs(fatal("none"), 4, 5, 2, restarts=1)) as envs:
        made = collector(envs, length=10)
        made.collect()
        real = Supervisor.answered

        def late(supervisor):
            while supervisor.equipment and made.stepping._rollouts.arrays["done"][::2].min() < 10:
                time.sleep(0.001)
            os.kill(envs.supervisor.workers[1].process.pid, signal.SIGKILL)
            envs.supervisor.workers[1].sock.recv(10_000)  # the report is lost with it
            monkeypatch.setattr(Supervisor, "answered", real)
            return real(supervisor)

        monkeypatch.setattr(Supervisor, "answered", late)
        assert made.collect().valid.all()
        assert (~made.collect().valid).nonzero().tolist() == [[0, 2], [0, 3]]


def test_an_error_of_an_env_is_raised_and_stops_the_others(tmp_path):
    """One env raises in its third step; the others would be busy for minutes."""
    config = fatal("raise", at=3, mark=str(tmp_path / "mark"), length=100_000)
    with closing(WorkerEnvs(config, 2, 5, 2)) as envs:
        made = collector(envs, length=50_000)
        with pytest.raises(EnvError, match=r"step of Fatal \(env \d, seed \d+, episode 0, step 3\) raised"):
            made.collect()
        envs.supervisor.settle()
        assert envs.supervisor.counts[:, 1].max() < 50_000
        assert envs.reset()[:, 0].tolist() == [0.0, 0.0]


def test_an_interrupt_stops_the_workers_after_their_step(monkeypatch):
    real = Supervisor.answered

    def interrupted(supervisor):
        time.sleep(0.1)
        raise KeyboardInterrupt

    with closing(WorkerEnvs(own("Slow"), 2, 5, 2)) as envs:
        made = collector(envs, length=20_000)
        monkeypatch.setattr(Supervisor, "answered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.collect()
        monkeypatch.setattr(Supervisor, "answered", real)
        began = time.monotonic()
        made.stepping._rollouts.begin()
        assert time.monotonic() - began < 10  # not the twenty seconds of a rollout
        assert not any(worker.awaited for worker in envs.supervisor.workers)
        envs.reset()


def test_a_rollout_is_counted_like_its_steps():
    one, many, rng = EpisodeTracker(3, ["x"]), EpisodeTracker(3, ["x"]), np.random.default_rng(0)
    for length in (1, 7, 40):
        reward, valid = rng.normal(size=(length, 3)), rng.random((length, 3)) < 0.9
        terminated, truncated = rng.random((length, 3)) < 0.1, rng.random((length, 3)) < 0.1
        infos = {(t, env): {"x": t, "y": 1} for t, env in np.argwhere(terminated | truncated).tolist()}
        for t in range(length):
            final = {env: info for (time_, env), info in infos.items() if time_ == t}
            one.add(Step(reward[t], reward[t], terminated[t], truncated[t], valid[t], {}, final))
        many.add_all(reward, valid, (terminated, truncated), infos)
        assert one.ret.tobytes() == many.ret.tobytes()
        assert one.length.tolist() == many.length.tolist()
        assert one.take() == many.take()
