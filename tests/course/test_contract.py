"""The contract for algorithms of one's own: dual-clip PPO keeps it, and others are told how they break it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import surefoot
from surefoot.algorithms import get_algorithm
from surefoot.algorithms.own import GROUP
from surefoot.cli.main import main
from surefoot.course import Wrong, check, contract, examine
from surefoot.user_code import load_object
from tests.building import make_batch, make_outputs
from tests.installing import install

EXAMPLE = Path(__file__).parents[2] / "examples" / "dual_clip.py"
HEAD = """
import torch
from surefoot.algorithms.ppo_clip import PPOClip
"""
BROKEN = {
    "Moody": (
        "the same update twice gives different weights",
        """
class Moody(PPOClip):
    def loss(self, outputs, batch):
        loss, metrics = self.terms(batch.remaining)(outputs, batch)
        return loss * torch.rand(()), metrics
""",
    ),
    "Blind": (
        "a step that is no transition",
        """
class Blind(PPOClip):
    def loss(self, outputs, batch):
        ratio = (outputs.log_prob - batch.log_prob).exp()
        return -(ratio * batch.advantage).mean() + (outputs.value - batch.value_target).pow(2).mean(), {}
""",
    ),
    "Forgetful": (
        "a resumed run differs from one that never stopped",
        """
class Forgetful(PPOClip):
    def __init__(self, config):
        super().__init__(config)
        self.updates = 0

    def update(self, learner, rollout):
        self.updates += 1
        rollout.reward *= self.updates
        return super().update(learner, rollout)
""",
    ),
}


@pytest.fixture(autouse=True)
def example(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "dual_clip.py")


def test_its_gain_is_the_formula_and_its_loss_has_it():
    check("dual_clip_gain", load_object("dual_clip.py:dual_clip_gain", "algo"))
    kind = get_algorithm("dual_clip.py:DualClip")
    algorithm = kind(kind.config_type(clip_ratio=0.2, dual_clip=3.0, value_coef=0.0))
    ratio = torch.tensor([5.0, 5.0, 2.0, 0.5])
    loss, _ = algorithm.loss(make_outputs(ratio.log()), make_batch([1.0, -1.0, -1.0, -1.0]))
    assert loss.item() == pytest.approx(-(1.2 - 3.0 - 2.0 - 0.8) / 4)
    examine(kind)


@pytest.mark.slow
def test_it_keeps_the_contract(capsys):
    contract("dual_clip.py:DualClip")
    assert capsys.readouterr().out.count("✓") == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_algorithm_is_told_what_it_breaks(name):
    said, code = BROKEN[name]
    Path("broken.py").write_text(HEAD + code, encoding="utf-8")
    with pytest.raises(Wrong, match=said):
        contract(f"broken.py:{name}")


def test_it_can_be_registered_under_a_name(tmp_path, monkeypatch, capsys):
    install(tmp_path / "site", monkeypatch, GROUP, dual_clip="dual_clip:DualClip")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert main(["list", "algos", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[-1]["algo"] == "dual-clip"
        assert main(["explain", "dual-clip"]) == 0
        assert "c: a bad action costs at most c times its advantage." in capsys.readouterr().out
        assert main(["train", "CartPole-v1", "--algo=dual-clip", "--dual-clip=2", "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert "preset CartPole-v1/ppo" in said
        short = {"num_envs": 2, "rollout_length": 16, "num_minibatches": 1, "total_steps": 64, "eval_episodes": 1}
        run = surefoot.train("CartPole-v1", "dual-clip", preset="none", seed=0, progress=False, **short)
        assert run.config["dual_clip"] == 3.0
        assert surefoot.resume(run, total_steps=128, progress=False).result["total_steps"] == 128
    finally:
        sys.modules.pop("dual_clip", None)
