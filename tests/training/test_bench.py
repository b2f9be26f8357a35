"""`surefoot bench`: every engine trains, in turn, and says where its time went."""

import json

import pytest

from surefoot.bench import measure as module
from surefoot.bench.measure import as_table, bench, only_training, spread
from surefoot.cli.main import main
from surefoot.errors import UsageError
from surefoot.training.config.resolve import resolve

SMALL = {"num_envs": 2, "rollout_length": 16, "num_epochs": 1, "num_minibatches": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(module, "WARM_UP", 0.01)


def config(**settings):
    return resolve("CartPole-v1", preset="none", overrides={**SMALL, **settings})


def test_both_engines_several_rounds():
    said = []
    found = bench(config(), rounds=3, seconds=0.05, say=said.append)
    assert list(found["engines"]) == ["torch", "native"]
    assert len(found["rounds"]) == len(said) == 3
    for own in found["engines"].values():
        assert (
            0 < own["steps_per_second"]["low"] <= own["steps_per_second"]["median"] <= own["steps_per_second"]["high"]
        )
        assert sum(own["split"].values()) == pytest.approx(1.0)
        assert own["split"]["learn"] > 0
    speeds = [{name: run["steps_per_second"] for name, run in results.items()} for results in found["rounds"]]
    assert found["ratios"]["native"] == spread([own["native"] / own["torch"] for own in speeds])
    table = as_table(found)
    assert table[0].startswith("| engine | steps/s")
    assert table[2].startswith("| torch |")
    assert table[-1].startswith("native / torch: ")
    json.dumps(found)


def test_the_median_and_the_range():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_so_many_steps_instead_of_seconds():
    found = bench(config(total_steps=320), ["native"], rounds=1, seconds=None)
    assert found["rounds"][0]["native"]["total_steps"] == 320
    assert found["ratios"] == {}


def test_nothing_but_training_is_timed():
    given = {"eval_every": 100, "target_return": 3.0, "video_every": 10, "max_time": "1h", "total_steps": 2000}
    run = only_training(config(**given), endless=True).run
    assert [run.eval_every, run.target_return, run.video_every, run.max_time] == [None] * 4
    assert run.eval_episodes == 0
    assert run.log_interval == config(**given).run.log_interval
    assert run.seed == 0


def test_an_engine_that_cannot_be_had_is_left_out_and_said():
    config = resolve("Pendulum-v1", preset="none", overrides={**SMALL, "std": "gsde"})
    found = bench(config, rounds=1, seconds=0.02)
    assert list(found["engines"]) == ["torch"]
    assert "its exploration depends on the state" in found["missing"]["native"]


def test_other_errors_are_not_swallowed():
    with pytest.raises(UsageError, match="NoSuchEnv"):
        bench(resolve("NoSuchEnv-v0", preset="none"), ["native"], rounds=1, seconds=0.01)


def test_the_command(capsys):
    words = ["--preset=none", "--num-envs=2", "--rollout-length=16", "--num-epochs=1", "--rounds=1", "--seconds=0.05"]
    assert main(["bench", *words, "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert (found["env"], found["algo"], list(found["engines"])) == ("CartPole-v1", "ppo", ["torch", "native"])
    assert "| native |" in out.err
    assert main(["bench", "Pendulum-v1", "--engines", "native", *words]) == 0
    assert "ppo on Pendulum-v1, preset none, 1 round of 0.05 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine=torch"], "choose them with --engines torch native"),
        (["--eval-every=3"], "--eval-every does not affect training"),
        (["--rounds=0"], "--rounds must be at least 1"),
        (["--seconds=0"], "--seconds greater than 0"),
        (["--lr=3"], "here it is --learning-rate"),
        (["Pendulum-v1", "--preset=none", "--std=gsde", "--engines=native"], "its exploration depends on the state"),
    ],
)
def test_wrong_flags(words, message, capsys):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
