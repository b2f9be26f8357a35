"""The engine for GPUs without one: its arithmetic on the CPU, where nothing is recorded, against the torch engine's."""

from dataclasses import replace

import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.algorithms import ALGORITHMS
from surefoot.algorithms.ppo_clip import Config, PPOClip
from surefoot.api import resume
from surefoot.engine.contract import CollectorOptions
from surefoot.engine.cuda.actor import Places
from surefoot.engine.cuda.engine import CudaEngine
from surefoot.engine.cuda.fused import not_fused
from surefoot.engine.cuda.networks import RecordedNetworks
from surefoot.engine.cuda.operations import DeviceOperations
from surefoot.engine.cuda.recorder import Recorder
from surefoot.engine.losses import Surrogate
from surefoot.engine.registry import choose_engine
from surefoot.engine.torch.actor import TorchActor
from surefoot.envs.config import EnvConfig
from surefoot.envs.device_envs import DeviceEnvs
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.errors import NonFiniteError, UsageError
from surefoot.math.returns import reverse_scan
from surefoot.policies.networks import PlainNetworks
from surefoot.training.build import envs as build
from surefoot.training.config.resolve import resolve
from tests.building import CONTINUOUS, DISCRETE, make_collector, make_learner, make_policy, make_rollout
from tests.engine.test_native import KINDS, SETTINGS, UPDATES
from tests.marks import quick

CPU = torch.device("cpu")
QUICK = [(name, "plain", "discrete") for name in ALGORITHMS] + [
    ("ppo", "stop", "discrete"),
    ("ppo", "plain", "box-lstm"),
    ("ppo", "critic-apart", "box"),
    ("ppo", "mean-noise", "box"),
    ("ppo", "adam-rel", "discrete"),
]


def pair(name, space, memory="none", **settings):
    """The same algorithm, policy and optimizer, with either engine."""
    kind = ALGORITHMS[name]
    size = {} if memory == "none" else {"memory_size": 12}
    for engine in ("torch", "cuda"):
        algorithm = kind(kind.config_type(num_envs=8, **settings))
        policy = make_policy(space, critic=kind.uses_critic, memory=memory, **size)
        yield algorithm, make_learner(engine, policy, algorithm, seed=1)


@pytest.mark.parametrize(("name", "settings", "kind"), quick(UPDATES, *QUICK))
def test_an_update_is_that_of_the_torch_engine(name, settings, kind):
    found = []
    for algorithm, learner in pair(name, *KINDS[kind], **SETTINGS[settings]):
        for seed in range(2):
            rollout = make_rollout(learner.policy, steps=16, num_envs=8, seed=seed, remaining=0.5)
            if seed:
                rollout.valid[3:5, 2] = False  # steps that are no transitions
            learner.update = 100 * seed  # both are measured in full, one also by halves
            learner.set_rates(0.5)
            metrics = algorithm.update(learner, rollout)
        alone = learner.optimizer.of_critic
        steps = learner.optimizer.steps, None if alone is None else alone.steps
        found.append((metrics, learner.flat.vector.clone(), steps, learner.generator.get_state()))
    (theirs, weights, steps, drawn), (ours, vector, count, also) = found
    assert list(ours) == list(theirs)
    assert count == steps
    assert torch.equal(drawn, also)
    for key, value in theirs.items():
        assert ours[key] == pytest.approx(value, rel=2e-3, abs=2e-5), key
    assert (vector - weights).abs().max() < 2e-4
    assert learner.used == {"cuda"}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"layer_norm": True}, "its layers are normalised"),
        (
            {"observation_space": spaces.Dict({"a": DISCRETE, "b": CONTINUOUS}), "critic_obs": ("b",)},
            "its critic has an encoder of its own",
        ),
    ],
    ids=["layer-norm", "critic-obs"],
)
def test_layers_that_triton_cannot_compute_are_left_to_pytorch(config, why):
    assert not_fused(make_policy(**config)) == why


def test_numbers_that_change_need_no_new_recording():
    """Schedules change ε, the entropy's weight, the clipped norm and the rate at every update."""
    settings = {"clip_ratio_schedule": "linear", "entropy_coef": "linear:0.1", "learning_rate": "linear:1e-3"}
    settings |= {"max_grad_norm": "linear:0.5"}
    found = []
    for engine in ("torch", "cuda"):
        algorithm = resolve("CartPole-v1", "ppo", preset="none", overrides={"num_envs": 8, **settings}).new_algorithm()
        learner = make_learner(engine, make_policy(DISCRETE), algorithm, seed=1)
        for remaining in (0.9, 0.5, 0.1):
            rollout = make_rollout(learner.policy, steps=16, num_envs=8, remaining=remaining)
            learner.set_rates(remaining)
            algorithm.update(learner, rollout)
        found.append(learner.flat.vector.clone())
    assert len(learner._fixed) == 1
    assert (found[0] - found[1]).abs().max() < 2e-4


def test_an_update_that_is_not_finite_leaves_everything_as_it_was():
    algorithm, learner = list(pair("ppo", DISCRETE))[1]
    rollout = make_rollout(learner.policy, steps=16, num_envs=8)
    rollout.reward[0, 0] = float("inf")
    before = (learner.flat.vector.clone(), learner.optimizer.first.clone(), learner.optimizer.steps)
    with pytest.raises(NonFiniteError):
        algorithm.update(learner, rollout)
    after = (learner.flat.vector, learner.optimizer.first, learner.optimizer.steps)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(before, after, strict=True))


class Outside:
    scale = 2.0

    def formula(self, outputs, batch):
        return self.scale * outputs.log_prob * batch.advantage


def test_a_loss_that_may_change_unseen_is_not_recorded():
    algorithm, learner = list(pair("ppo", DISCRETE))[1]
    batch = algorithm.estimate(make_rollout(learner.policy, steps=16, num_envs=8))
    loss, scale = algorithm.terms(1.0), 2.0
    assert learner.not_fixed(loss, batch, 4) is None
    for formula in (lambda outputs, batch: scale * outputs.log_prob * batch.advantage, Outside().formula):
        assert "outside its formula" in learner.not_fixed(replace(loss, surrogate=Surrogate(formula)), batch, 4)
    assert "a loss of its own" in learner.not_fixed(algorithm.loss, batch, 4)
    assert "differ in size" in learner.not_fixed(loss, batch, 5)
    learner.fixed_length = False
    assert "whole episodes" in learner.not_fixed(loss, batch, 4)


def test_an_own_loss_is_learned_from_all_the_same():
    class Own(PPOClip):
        def loss(self, outputs, batch):
            total, metrics = super().loss(outputs, batch)
            return 2.0 * total, metrics

    found = []
    for engine in ("torch", "cuda"):
        algorithm = Own(Config(num_envs=8))
        learner = make_learner(engine, make_policy(DISCRETE), algorithm, seed=1)
        algorithm.update(learner, make_rollout(learner.policy, steps=16, num_envs=8))
        found.append(learner.flat.vector)
    torch.testing.assert_close(*found, rtol=0, atol=2e-4)


def test_forms_that_change_again_and_again_are_not_recorded_for_ever():
    algorithm, learner = list(pair("ppo", DISCRETE))[1]
    for steps in range(2, 8):
        algorithm.update(learner, make_rollout(learner.policy, steps=steps, num_envs=8))
    assert len(learner._fixed) == 4


def test_the_observer_sees_every_gradient():
    seen = {}
    for engine, (algorithm, learner) in zip(("torch", "cuda"), pair("ppo", DISCRETE), strict=True):
        seen[engine] = []
        learner.observer = lambda kind, vector, to=seen[engine]: to.append(vector.clone())
        algorithm.update(learner, make_rollout(learner.policy, steps=16, num_envs=8))
    assert len(seen["torch"]) == len(seen["cuda"]) > 2
    torch.testing.assert_close(seen["torch"][0], seen["cuda"][0])


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 64, 100])
def test_the_scan_by_doubling_is_the_scan(steps):
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(steps, 5, generator=generator, dtype=torch.float64)
    decay = 0.99 * (torch.rand(steps, 5, generator=generator, dtype=torch.float64) > 0.1).double()
    before = x.clone()
    torch.testing.assert_close(DeviceOperations().reverse_scan(x, decay), reverse_scan(x, decay))
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_memory_that_looks_at_nothing_remembers_the_same(kind):
    policy = make_policy(DISCRETE, memory=kind, memory_size=6)
    rollout = make_rollout(policy, steps=9, num_envs=4)
    inputs = rollout.inputs.flatten(0, 1)
    found = []
    for networks in (PlainNetworks(policy), RecordedNetworks(policy)):
        policy.compute_with(networks)
        policy.zero_grad()
        policy.action_params(inputs, rollout.context).square().sum().backward()
        found.append([p.grad.clone() for p in policy.actor_parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [{}, {"memory": "lstm", "memory_size": 4}, {"std": "gsde"}], ids=str)
def test_an_actor_with_fixed_places_acts_alike(config):
    policy = make_policy(CONTINUOUS, **config)
    rows, generator = policy.noise(1, 5, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    obs, start = torch.randn(5, 4, generator=generator), torch.tensor([True, False, True, False, False])
    found = []
    for fixed in (False, True):
        memory = policy.initial_memory(5)
        begins = None if memory is None else start
        if memory is not None:
            memory += 0.5
        out = (torch.zeros(5, 4), torch.zeros(5, 2), torch.zeros(5))
        if fixed:
            places = Places(policy, obs, rows[0])
            places.record(TorchActor(policy).act, Recorder())
            places.act(obs, rows[0], begins, memory, out)
        else:
            TorchActor(policy).act(obs, rows[0], begins, memory, out)
        found.append([*out, *([] if memory is None else [memory])])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert places.fit(obs, rows[0])
    assert not places.fit(obs[:3], rows[0])


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_rollout_in_fixed_places_is_the_ordinary_one(memory):
    size = {} if memory == "none" else {"memory_size": 4}
    found = []
    for engine in ("torch", "cuda"):
        envs = DeviceEnvs(EnvConfig(env="CartPole-v1", max_episode_steps=9), 3, 0, CPU)
        policy = make_policy(envs.action_space, observation_space=envs.observation_space, memory=memory, **size)
        options = CollectorOptions(12, torch.Generator().manual_seed(0))
        kind = CudaEngine() if engine == "cuda" else surefoot.engine.registry.get_engine("torch")
        learner = kind.learner(policy, PPOClip(Config(num_envs=3)), make_options())
        made = kind.collector(envs, learner.actor, options)
        rollouts = [made.collect() for _ in range(3)]
        found.append((rollouts[-1], made.tracker.take(), made.tracker.length))
    (one, episodes, lengths), (other, same, also) = found
    for name in ("obs", "action", "reward", "terminated", "truncated", "log_prob"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    torch.testing.assert_close(one.next_value, other.next_value)
    assert episodes == same
    assert (lengths == also).all()


@pytest.mark.parametrize("first", ["device", "host"])
def test_a_run_may_go_on_without_its_gpu_or_with_one(first):
    """The open episodes cannot be restored there; new ones begin."""
    config, made = EnvConfig(env="CartPole-v1"), []
    device, host = DeviceEnvs(config, 3, 0, CPU), GymEnvs(lambda: make_env(config), 3, 0)
    for envs in (device, host) if first == "device" else (host, device):
        policy = make_policy(envs.action_space, observation_space=envs.observation_space)
        made.append(make_collector(envs, policy, 12))
    made[0].collect()
    state = made[0].state_dict()
    made[1].state_shape().check(state)
    assert made[1].load_state_dict(state) == [0, 1, 2]
    rollout = made[1].collect()
    assert (rollout.obs[0].abs() <= 0.05).all()  # as episodes begin


def make_options():
    from surefoot.engine.contract import LearnerOptions

    return LearnerOptions(torch.Generator().manual_seed(0))


def test_it_serves_policies_on_a_gpu_only():
    policy, algorithm = make_policy(DISCRETE), PPOClip(Config())
    assert "not on a GPU" in CudaEngine().serves(policy, algorithm, None)
    with pytest.raises(UsageError, match="engine=cuda is not available: the policy is on cpu"):
        choose_engine("cuda", policy, algorithm, None)


def test_what_is_not_recorded_is_said_once_and_only_where_it_would_be():
    recorder = Recorder()
    recorder.refuse("acting", "it waits", CPU)
    assert recorder.take_notices() == []
    for _ in range(2):
        recorder.refuse("acting", "it waits", torch.device("cuda"))
    assert recorder.take_notices() == ["acting is not recorded as a CUDA graph, which would be faster: it waits"]
    assert recorder.take_notices() == []


class Die(surefoot.Callback):
    def on_rollout(self, trainer, rollout):
        if trainer.update == 4:
            trainer.run.set_status("running", step=0)
            trainer.save = lambda **_: None  # a killed process saves nothing
            raise KeyboardInterrupt


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The engine and its envs, as if the CPU were a GPU."""
    monkeypatch.setattr(CudaEngine, "serves", lambda *_: None)
    monkeypatch.setattr(build, "gpu_for_envs", lambda config: CPU)


def test_a_run_passes_on_what_its_engine_says(on_the_cpu, monkeypatch, tmp_path):
    heard = []

    class Heard(surefoot.Callback):
        def on_warning(self, trainer, message):
            heard.append(message)

    monkeypatch.setattr(CudaEngine, "take_notices", lambda self: ["it is Sunday"])
    settings = {"preset": "none", "seed": 0, "progress": False, "eval_episodes": 0, "engine": "cuda", "num_envs": 2}
    size = {"rollout_length": 8, "total_steps": 16, "num_epochs": 1, "num_minibatches": 1}
    surefoot.train("CartPole-v1", run_dir=tmp_path / "run", callbacks=[Heard()], **settings, **size)
    assert heard == ["it is Sunday"]


@pytest.mark.parametrize(
    "settings", quick([{}, {"memory": "gru"}, {"algo": "reinforce"}, {"algo": "trpo"}], {}), ids=str
)
def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(settings, on_the_cpu, tmp_path):
    base = {"preset": "none", "seed": 3, "progress": False, "eval_episodes": 0, "engine": "cuda", "num_envs": 4}
    whole = settings.get("algo") == "reinforce"
    base |= {"max_episode_steps": 30, "total_steps": 1200} if whole else {"rollout_length": 20, "total_steps": 640}
    base |= {"normalize_observations": True, "normalize_rewards": True, "log_every": 80, "checkpoint_every": 160}
    run = surefoot.train("CartPole-v1", run_dir=tmp_path / "whole", **base, **settings)
    with pytest.raises(KeyboardInterrupt):
        surefoot.train("CartPole-v1", run_dir=tmp_path / "killed", callbacks=[Die()], **base, **settings)
    again = resume(tmp_path / "killed", progress=False)
    last = (run.path / "checkpoints" / "LATEST").read_text().strip()
    for name in ("metrics.jsonl", f"checkpoints/{last}/policy.safetensors"):
        assert (run.path / name).read_bytes() == (again.path / name).read_bytes()
    assert run.result["engine"] == run.result["engine_chosen"] == "cuda"
