"""What acts and what learns: said at the start, in the manifest, in the result and at the end, and true."""

import json

import pytest

import surefoot
from surefoot.algorithms import ALGORITHMS, npg, ppo_clip, vpg
from surefoot.algorithms.parts import Base, estimate
from surefoot.algorithms.reinforce import ONE_PASS
from surefoot.cli.main import main
from surefoot.engine.losses import RATIO, Loss, Surrogate

QUIET = {"preset": "none", "seed": 0, "num_envs": 2, "rollout_length": 16, "total_steps": 64, "eval_episodes": 2}


class NoSpec(Base[vpg.Config]):
    """As one writes an algorithm at first: a loss, and nothing for the kernels."""

    config_type = vpg.Config

    def estimate(self, rollout, operations):
        return estimate(rollout, self.config, operations)

    def loss(self, outputs, batch):
        loss = -batch.mean(outputs.log_prob * batch.advantage) + batch.mean((outputs.value - batch.value_target) ** 2)
        return loss, {"policy_loss": loss.detach()}

    def update(self, learner, rollout):
        return learner.epochs(self.loss, self.estimate, rollout, ONE_PASS)


class Careful(ppo_clip.PPOClip):
    """PPO with a loss of its own: what the base class says of its loss is not true of this one."""

    calls = 0

    def loss(self, outputs, batch):
        type(self).calls += 1
        loss, metrics = super().loss(outputs, batch)
        return 0.5 * loss, metrics


class Forgetful(ppo_clip.PPOClip):
    """States what its loss is made of, and does not hand it over."""

    def update(self, learner, rollout):
        return learner.epochs(self.loss, self.estimate, rollout, self.config, normalize=True)


class Half(npg.NPG):
    """An objective of its own; the critic's loss is the usual one."""

    def terms(self, remaining):
        return Loss(Surrogate(lambda outputs, batch: 2.0 * RATIO.formula(outputs, batch)))


class Plain:
    """Made without our base class."""

    config_type, uses_critic, train_actor, episodes_per_env = vpg.Config, True, True, None

    def __init__(self, config):
        self.config, self.state = config, {}

    estimate, loss, update = NoSpec.estimate, NoSpec.loss, NoSpec.update

    def current_loss(self, remaining):
        return self.loss


MINE = {"nospec": NoSpec, "careful": Careful, "forgetful": Forgetful, "half": Half, "plain": Plain}
EXPECTED = {"nospec": "torch", "careful": "torch", "forgetful": "torch", "half": "native+torch", "plain": "torch"}


@pytest.fixture(params=MINE)
def algo(request, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, request.param, MINE[request.param])
    return request.param


def small(algo):
    return QUIET | {"careful": {"num_minibatches": 2}, "forgetful": {"num_minibatches": 2}}.get(algo, {})


def test_an_algorithm_without_a_spec_says_that_pytorch_learns(algo, tmp_path, capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in small(algo).items()]
    Careful.calls = 0
    assert main(["train", "CartPole-v1", f"--algo={algo}", f"--run-dir={tmp_path / 'run'}", *words]) == 0
    said, learning = capsys.readouterr().out, EXPECTED[algo]
    result, manifest = (json.loads((tmp_path / "run" / name).read_text()) for name in ("result.json", "manifest.json"))
    assert (result["engine"], result["acting"], result["learning"]) == ("mixed", "native", learning)
    acting, why = "acting native (the kernels serve this policy)", f"{algo} has a loss that the kernels do not support"
    assert result["engine_reason"] == f"{acting}, learning {learning} ({why})"
    assert f"steps/s, acting native, learning {learning})" in said
    if algo == "forgetful":  # it has stated a loss, so this comes out in its first update
        assert "engine native (the kernels serve this policy) on cpu" in said
        assert f"the update does not do what the algorithm's spec says: {result['engine_reason']}" in said
    else:
        assert f"{acting}, learning torch ({why}) on cpu" in said
        assert "the algorithm's spec" not in said
        assert (manifest["engine"], manifest["acting"], manifest["learning"]) == ("mixed", "native", "torch")
    assert bool(Careful.calls) == (algo == "careful")  # its own loss is what is learned


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_ours_act_and_learn_with_one_engine(name, engine):
    whole = {"reset_each_rollout": True} if name == "reinforce" else {}
    how = {**QUIET, **whole, "engine": engine, "progress": False}
    if name in ("ppo", "ppo-penalty"):
        how["num_minibatches"] = 2
    run = surefoot.train("CartPole-v1", name, **how)
    assert [run.result[key] for key in ("engine", "acting", "learning")] == [engine] * 3
    assert run.result["engine_reason"] == f"engine {engine} (as asked)"


def test_on_pytorch_nothing_is_mixed(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "nospec", NoSpec)
    run = surefoot.train("CartPole-v1", "nospec", **QUIET, engine="torch", progress=False)
    assert [run.result[key] for key in ("engine", "acting", "learning")] == ["torch"] * 3


def test_a_resumed_run_is_not_said_to_have_changed_its_engine(monkeypatch, tmp_path, capsys):
    """Also where an earlier version began it, which called it by what acts."""
    monkeypatch.setitem(ALGORITHMS, "nospec", NoSpec)
    run = surefoot.train("CartPole-v1", "nospec", run_dir=tmp_path / "run", **QUIET)
    surefoot.resume(run, total_steps=96)
    manifest = json.loads((run.path / "manifest.json").read_text())
    for key in ("acting", "learning"):
        del manifest[key]
    (run.path / "manifest.json").write_text(json.dumps(manifest | {"engine": "native"}))
    surefoot.resume(run, total_steps=128)
    assert "began with" not in capsys.readouterr().out
