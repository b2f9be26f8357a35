"""`surefoot diagnose`: advice on ill runs, silence on healthy ones, clear answers where there is nothing to judge."""

import json

import pytest

from surefoot.analysis.diagnosis import Advice, diagnose
from surefoot.cli.main import main
from surefoot.runs import Run
from tests.analysis.synthetic import make_run


def rows(count=40, **metrics):
    well = {"kl": 0.01, "explained_variance": 0.7, "entropy": 0.5, "episode_length": 40.0}
    return [
        {"step": 25 * at, "update": at, "episodes": 4 * at, "episode_return": 20.0 + at, **well, **metrics}
        for at in range(1, count + 1)
    ]


@pytest.fixture
def ill(tmp_path):
    return make_run(tmp_path / "ill", rows=rows(kl=7.5))


@pytest.fixture
def well(tmp_path):
    return make_run(tmp_path / "well", rows=rows())


def test_advice_has_its_evidence_its_flag_and_since_when(ill, well):
    (found,) = diagnose(Run(ill))
    assert found == Advice(
        "updates_too_large",
        "the updates are far too large: KL 7.5 each. Lower --learning-rate (now 0.001)",
        "the updates are far too large: KL 7.5 each",
        "--learning-rate",
        1,
    )
    assert diagnose(Run(well)) == []


def test_several_runs_in_words(ill, well, capsys):
    assert main(["diagnose", str(ill), str(well)]) == 0
    out = capsys.readouterr().out
    assert "1. since update 1: the updates are far too large: KL 7.5 each" in out
    assert f"{well}: nothing unusual in 40 rows" in out


def test_as_json(ill, well, capsys):
    assert main(["diagnose", str(ill), str(well), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["run"] == str(ill)
    assert [advice["rule"] for advice in first["advice"]] == ["updates_too_large"]
    assert second == {"run": str(well), "rows": 40, "error": None, "failure": None, "advice": []}


def test_a_run_without_rows(tmp_path, capsys):
    run = make_run(tmp_path / "new", rows=[])
    assert main(["diagnose", str(run)]) == 0
    assert "no rows of metrics yet" in capsys.readouterr().out


def test_the_last_line_may_be_half_written(ill, capsys):
    with (ill / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1000, "kl": 0.')
    assert main(["diagnose", str(ill)]) == 0
    assert "far too large" in capsys.readouterr().out


def test_a_damaged_run_does_not_hide_the_others(ill, well, capsys):
    (ill / "metrics.jsonl").write_text("what is this\n{}\n")
    assert main(["diagnose", str(ill)]) != 0
    assert "metrics.jsonl" in capsys.readouterr().err
    assert main(["diagnose", str(ill), str(well)]) != 0
    found = capsys.readouterr()
    assert "nothing unusual" in found.out
    assert "metrics.jsonl" in found.err
    assert main(["diagnose", str(ill), str(well), "--json"]) != 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert "metrics.jsonl" in first["error"]
    assert second["error"] is None


def test_a_run_of_a_newer_version_is_not_judged_by_our_rules(well, capsys):
    manifest = well / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 7}))
    assert main(["diagnose", str(well)]) == 4
    assert f"{well} was written by a newer surefoot (schema 7); update yours" in capsys.readouterr().err


def test_an_unknown_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "CartPole-v1" / "ppo" / "s0")
    assert main(["diagnose", "CartPole-v2"]) == 2
    assert "CartPole-v1" in capsys.readouterr().err


def test_odd_numbers_do_not_end_it(tmp_path):
    """Another version, or another program, may have written anything."""
    names = ("kl", "entropy", "episode_return", "step", "update")
    odd = [rows(1)[0] | dict.fromkeys(names, value) for value in (None, "text", [1], True, -1.0)]
    run = make_run(tmp_path / "odd", num_envs="many", gamma="linear:0.9", clip_ratio=[1])
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in odd))
    assert diagnose(Run(run)) == []


def test_an_env_that_hangs_is_found_in_the_episodes(tmp_path):
    run = make_run(tmp_path / "stuck", rows=rows(), num_envs=4)
    ended = [f"{25 * at},{20 + at},2,0,{env},0.1" for at in range(1, 41) for env in (0, 1, 3)]
    (run / "episodes.csv").write_text("\n".join(["step,return,length,seed,env,seconds", *ended]) + "\n")
    (found,) = diagnose(Run(run))
    assert found.rule == "stuck_env"
    assert found.evidence.startswith("env 2 of 4 has not ended an episode")


def test_a_run_that_failed_says_so_first(well, capsys):
    (well / "status.json").write_text(json.dumps({"state": "failed", "step": 9, "error": "EnvError: boom"}))
    assert main(["diagnose", str(well)]) == 0
    assert f"{well}: the run failed: EnvError: boom\nbefore that: nothing unusual" in capsys.readouterr().out
    assert main(["diagnose", str(well), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failure"] == "EnvError: boom"
