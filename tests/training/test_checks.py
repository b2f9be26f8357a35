"""What is refused before the first env step for want of memory; and before a network is built."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import surefoot
from surefoot.errors import UsageError
from surefoot.policies.actor_critic import ActorCritic
from surefoot.policies.config import PolicyConfig
from surefoot.spaces.layout import Layout
from surefoot.training.build import available, checks
from surefoot.training.build.checks import check_memory, check_rollout
from surefoot.training.build.footprint import Plan, footprint, num_parameters, stored_bytes
from surefoot.training.config.resolve import resolve
from surefoot.training.trainer import Trainer
from tests.helpers import ScriptedEnv
from tests.tensor_vector_envs import Drift

GIB, CPU, GPU = 2**30, torch.device("cpu"), torch.device("cuda", 1)


@pytest.fixture
def machine(monkeypatch):
    """16 GiB are available on the host, 4 on the second GPU."""
    room = {"cpu": 16 * GIB, "cuda": 4 * GIB}
    monkeypatch.setattr(checks, "available_bytes", lambda device: room.get(device.type))
    return room


def plan(gib=0.0, shape=(4,), **changes):
    """A run whose rollout takes about so many GiB."""
    found = {
        "layout": Layout(spaces.Box(-1, 1, shape, np.float32)),
        "action_space": spaces.Discrete(3),
        "policy": PolicyConfig(),
        "critic": True,
        "steps": 128,
        "num_envs": 8,
        **changes,
    }
    made = Plan(**found)
    return made if not gib else Plan(**found | {"steps": int(gib * GIB / stored_bytes(made) * made.steps)})


def test_a_run_is_held_against_what_is_available(machine):
    check_memory(plan(gib=10))
    with pytest.raises(UsageError) as caught:
        check_memory(plan(gib=15))
    said = str(caught.value)
    assert "this run would need about 14.9 GiB" in said
    assert " of memory (rollouts of 8 envs × " in said
    assert "16.0 GiB are available. Lower --num-envs or --rollout-length" in said


def test_a_rollout_on_a_gpu_is_held_against_what_is_free_there_and_what_is_stored_here(machine):
    small = plan(gib=0.5, native=False, minibatches=64)
    check_memory(small, GPU)
    with pytest.raises(UsageError, match=r"4.0 GiB are available on cuda:1"):
        check_memory(plan(gib=4), GPU)
    machine["cpu"] = GIB // 2
    with pytest.raises(UsageError, match=r"\(rollouts of 8 envs × \d+ steps 0.5 GiB\); 0.5 GiB are available. Lower"):
        check_memory(small, GPU)
    check_memory(small, GPU, on_host=False)  # envs of tensors do not care for the host


def test_a_device_that_tells_nothing_is_trusted(machine):
    check_memory(plan(gib=1000), torch.device("mps"), on_host=False)


def test_envs_are_counted_before_they_are_made(machine):
    check_rollout(1024, 1024)
    with pytest.raises(UsageError, match=r"a rollout of 1000000 envs × 100000 steps needs at least .* are available"):
        check_rollout(100_000, 1_000_000)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"policy": PolicyConfig(hidden_sizes=(40_000, 40_000))}, "Lower --hidden-sizes"),
        ({"shape": (1_000_000,)}, "Lower --hidden-sizes, or shrink the observation of 1,000,000 numbers"),
        ({"shape": (100_000,), "num_envs": 10_000}, "--rollout-length, or shrink the observation of 100,000 numbers"),
        (
            {"num_envs": 30_000, "minibatches": 2, "native": False, "policy": PolicyConfig(hidden_sizes=(4096,))},
            "Raise --num-minibatches, or lower --num-envs or --rollout-length",
        ),
    ],
)
def test_the_advice_is_for_what_is_largest(machine, changes, advice):
    with pytest.raises(UsageError, match=advice + "$"):
        check_memory(plan(**changes))


@pytest.mark.parametrize(("shape", "dtype"), [((500_000,), np.float32), ((1000, 1000, 3), np.uint8)])
def test_a_huge_observation_is_refused_before_a_network_is_built(machine, monkeypatch, shape, dtype):
    machine["cpu"] = GIB // 16
    space = spaces.Box(0, 255, shape, dtype)

    class Huge(ScriptedEnv):
        def __init__(self):
            self.observation_space, self.action_space = space, spaces.Box(-1, 1, (1,))

        def reset(self, **kwargs):
            raise AssertionError("nothing may be asked of it")

    monkeypatch.setattr(ActorCritic, "__init__", lambda *args, **kwargs: pytest.fail("a network was built"))
    with pytest.raises(UsageError, match=r"or shrink the observation of [0-9,]* numbers"):
        surefoot.train(Huge, preset="none", num_envs=2, total_steps=10_000, rollout_length=1024, progress=False)


SPACES = {
    "vector": spaces.Box(-1, 1, (5,)),
    "image": spaces.Box(0, 255, (84, 84, 4), np.uint8),
    "small image": spaces.Box(0, 255, (20, 20, 3), np.uint8),
    "grid": spaces.Box(0, 10, (7, 7, 3), np.uint8),
    "choice": spaces.Discrete(10),
    "word": spaces.Discrete(500),
    "mixed": spaces.Dict({"eye": spaces.Box(0, 255, (40, 40, 3), np.uint8), "arm": spaces.Box(-1, 1, (3,))}),
}


@pytest.mark.parametrize("critic", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"memory": "gru"},
        {"memory": "lstm", "memory_size": 12},
        {"shared_trunk": True},
        {"critic_hidden_sizes": (8, 9, 10), "shared_trunk": False},
        {"encoder": "impala"},
        {"hidden_sizes": ()},
        {"layer_norm": True},
        {"layer_norm": True, "shared_trunk": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", SPACES)
def test_parameters_are_counted_without_building_them(name, settings, critic):
    config, action = PolicyConfig(**settings), spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])
    if settings == {"hidden_sizes": ()} and name in ("vector", "choice"):
        config = PolicyConfig(hidden_sizes=(), shared_trunk=False)
    built = ActorCritic(SPACES[name], action, config, critic=critic)
    counted = num_parameters(plan(layout=Layout(SPACES[name]), action_space=action, policy=config, critic=critic))
    assert counted == sum(p.numel() for p in built.parameters()) - 2  # log σ of the two


def test_what_kernels_serve_is_told_without_a_policy():
    box = spaces.Box(-1, 1, (2,))
    assert plan().served
    assert not plan(native=False).served
    assert plan(action_space=spaces.Dict({"a": spaces.MultiBinary(2), "b": box})).served
    assert plan(action_space=box, policy=PolicyConfig(action_bounds="tanh")).served
    assert not plan(action_space=box, policy=PolicyConfig(std="gsde")).served
    assert plan(layout=Layout(SPACES["choice"])).served
    assert not plan(layout=Layout(SPACES["word"])).served
    assert not plan(layout=Layout(SPACES["grid"])).served


def test_what_is_measured_has_two_networks_at_once():
    wide = PolicyConfig(hidden_sizes=(2048, 2048))
    alone = footprint(plan(policy=wide, threads=2)).networks
    assert footprint(plan(policy=wide, threads=2, measured=True)).networks > 1.15 * alone
    weights = 4 * num_parameters(plan(policy=wide))
    assert alone > 20 * weights  # shards of the gradient, moments, a copy to fall back on, a checkpoint


def test_a_trainer_knows_what_it_will_take(monkeypatch):
    asked = []
    real = checks.check_memory

    def check(plan, device, *, on_host):
        asked.append((plan.steps, plan.num_envs, plan.minibatches, plan.native, device, on_host))
        return real(plan, device, on_host=on_host)

    monkeypatch.setattr("surefoot.training.trainer.check_memory", check)
    config = resolve("Drift", preset="none", overrides={"num_envs": 4, "rollout_length": 16, "num_minibatches": 1})
    Trainer(config, 0, envs=Drift()).envs.close()
    config = resolve(
        "CartPole-v1", preset="none", overrides={"num_envs": 4, "rollout_length": 16, "num_minibatches": 4}
    )
    trainer = Trainer(config, 0)
    trainer.envs.close()
    assert asked == [(16, 4, 1, False, CPU, False), (16, 4, 4, True, CPU, True)]
    assert 1e6 < trainer.footprint.total < 1e7


class TestAvailable:
    @pytest.fixture
    def system(self, tmp_path, monkeypatch):
        """A /proc and a /sys of our own."""
        monkeypatch.setattr(available, "PROC", tmp_path / "proc")
        monkeypatch.setattr(available, "CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(available, "_shell", lambda: None)

        def write(**files):
            for name, text in files.items():
                file = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(str(text))

        write(proc__meminfo=f"MemTotal: 99 kB\nMemAvailable:  {8 * GIB // 1024} kB\n")
        return write

    def test_without_a_container_it_is_the_machine(self, system):
        assert available.available_bytes(CPU) == 8 * GIB

    def test_a_container_of_version_2_has_its_own_limit(self, system):
        system(proc__self__cgroup="0::/a/b\n")
        system(cgroup__a__b__memory_DOT_max="max", cgroup__a__b__memory_DOT_current=1)
        system(cgroup__a__b__memory_DOT_stat="inactive_file 0\n")
        assert available.available_bytes(CPU) == 8 * GIB
        system(cgroup__a__memory_DOT_max=4 * GIB, cgroup__a__memory_DOT_current=2 * GIB)
        system(cgroup__a__memory_DOT_stat=f"anon 5\ninactive_file {GIB}\n")
        assert available.available_bytes(CPU) == 3 * GIB

    def test_inside_of_one_the_root_is_ours(self, system):
        system(proc__self__cgroup="0::/not/here\n")
        system(cgroup__memory_DOT_max=2 * GIB, cgroup__memory_DOT_current=GIB, cgroup__memory_DOT_stat="x 1\n")
        assert available.available_bytes(CPU) == GIB

    def test_a_container_of_version_1(self, system):
        system(proc__self__cgroup="9:name=systemd:/\n4:memory,cpu:/a\n")
        system(cgroup__memory__a__memory_DOT_limit_in_bytes=3 * GIB, cgroup__memory__a__memory_DOT_usage_in_bytes=GIB)
        system(cgroup__memory__a__memory_DOT_stat="total_inactive_file 0\n")
        assert available.available_bytes(CPU) == 2 * GIB

    def test_more_than_everything_is_taken(self, system):
        system(proc__self__cgroup="0::/\n")
        system(cgroup__memory_DOT_max=GIB, cgroup__memory_DOT_current=2 * GIB, cgroup__memory_DOT_stat="x 1\n")
        assert available.available_bytes(CPU) == 0

    def test_where_there_is_no_proc_nothing_is_known(self, tmp_path, monkeypatch):
        monkeypatch.setattr(available, "PROC", tmp_path)
        monkeypatch.setattr(available, "_shell", lambda: None)
        assert available.available_bytes(CPU) is None
        assert available.available_bytes(torch.device("mps")) is None

    def test_a_shells_limit_counts(self, monkeypatch):
        import resource

        taken = available._shell()
        monkeypatch.setattr(resource, "getrlimit", lambda which: (2**50, 2**50))
        assert 0 < available._shell() < 2**50
        assert taken is None or taken > 0

    def test_here_it_is_some(self):
        assert 2**24 < available.available_bytes(CPU) < 2**50
