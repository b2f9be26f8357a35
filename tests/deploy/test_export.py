"""`surefoot export`: from a run to files that were checked, or to nothing at all."""

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.deploy import exporting
from surefoot.deploy.c.source import Translation, translate
from surefoot.runs.pack import unpack

FIXTURES = Path(__file__).parent.parent / "fixtures"
RUNS = FIXTURES / "runs-0.1.0"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(exporting, "OBSERVATIONS", 320)
    shutil.copytree(RUNS / "ppo-gru", "run")
    return Path("run")


def test_a_run_becomes_c_with_its_parity_beside_it(run, capsys):
    assert main(["export", str(run), "--to", "c"]) == 0
    out = capsys.readouterr().out
    assert "parity on 320 recorded observations: parameters within " in out
    assert "parity on 320 random observations: " in out
    (folder,) = (run / "exports").iterdir()
    names = {"surefoot_policy.c", "surefoot_policy.h", "surefoot_policy_test.c", "surefoot_policy_test.bin"}
    assert {file.name for file in folder.iterdir()} == {*names, "parity.json", "run_manifest.json"}
    assert (folder / "run_manifest.json").read_bytes() == (run / "manifest.json").read_bytes()
    kept = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    assert kept["checkpoint"] == folder.name.removesuffix("-c")
    assert {kind: each["passed"] for kind, each in kept["parity"].items()} == {"recorded": True, "random": True}
    assert surefoot.Run(run).path == run  # what is in it is still one run
    assert [found.path for found in surefoot.runs.list_runs(Path())] == [run]


def test_an_export_that_differs_is_refused_and_not_written(run, capsys, monkeypatch):
    def wrong(program, name, **how):
        found = translate(program, name, **how)
        return Translation(found.header, found.source.replace("sum += term;", "sum += term * (real)1.001;"))

    monkeypatch.setattr("surefoot.deploy.c.exporter.translate", wrong)
    assert main(["export", str(run), "--to", "c"]) == 1
    assert "does not act like the run's own, so nothing was written" in capsys.readouterr().err
    assert not (run / "exports").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no kind of file given; for example: surefoot export latest --to c"),
        (["--to", "d"], "cannot export to 'd'; known: c, onnx"),
        (["--to", "c", "--seed", "3"], "--seed has no effect without --stochastic"),
        (["--to", "c", "--stochastic", "--seed", "-3"], "--seed -3 must be from 0"),
        (["--to", "onnx", "--stochastic", "--seed", "3"], "--seed is only for --to c"),
        (["--to", "c", "--name", "a b"], "the name 'a b' is not possible: use small letters"),
        (["--to", "onnx", "--name", "../../x"], "the name '../../x' is not possible"),
        (["--to", "onnx", "--name", "a/b"], "the name 'a/b' is not possible"),
        (["--to", "onnx", "--name", "."], "the name '.' is not possible"),
        (["--to", "c", "--checkpoint", "7"], "there is no checkpoint '7'"),
    ],
)
def test_wrong_words(run, capsys, words, message):
    assert main(["export", str(run), *words]) in (2, 4)
    assert message in capsys.readouterr().err


def test_without_a_compiler_it_says_so(run, capsys, monkeypatch):
    monkeypatch.setattr("surefoot.deploy.c.exporter.find_compiler", lambda: None)
    assert main(["export", str(run), "--to", "c"]) == 2
    assert "there is no C compiler" in capsys.readouterr().err


def test_cc_is_used_as_it_is_given_or_refused(run, capsys, monkeypatch):
    for wrong in ("nonexistent", "nonexistent -m32", "'"):
        monkeypatch.setenv("CC", wrong)
        assert main(["export", str(run), "--to", "c"]) == 2
        assert f"CC={wrong} names no compiler that can be found" in capsys.readouterr().err
    monkeypatch.setenv("CC", "false")
    assert main(["export", str(run), "--to", "c"]) == 1
    assert "the exported policy: it ended with exit code 1 and printed nothing" in capsys.readouterr().err
    monkeypatch.setenv("CC", "env gcc")  # words, as `ccache gcc` has
    assert main(["export", str(run), "--to", "c", "--out", "policy"]) == 0
    assert json.loads(Path("policy/parity.json").read_text(encoding="utf-8"))["checked_with"].startswith("env gcc -std")


def test_a_full_disk_leaves_the_last_export_as_it_was_and_no_half_of_a_new_one(run, capsys, monkeypatch):
    write = exporting.write_all_durable

    def full(files):
        write(dict(list(files.items())[:2]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_all_durable", full)
    assert main(["export", str(run), "--to", "c", "--out", "policy"]) == 2
    assert "cannot write to policy: No space left on device" in capsys.readouterr().err
    assert not Path("policy").exists()
    monkeypatch.setattr(exporting, "write_all_durable", write)
    assert main(["export", str(run), "--to", "c", "--out", "policy"]) == 0
    before = {file.name: file.read_bytes() for file in Path("policy").iterdir()}
    monkeypatch.setattr(exporting, "write_all_durable", full)
    assert main(["export", str(run), "--to", "c", "--stochastic", "--out", "policy"]) == 2
    assert {file.name: file.read_bytes() for file in Path("policy").iterdir()} == before


def test_a_kill_between_two_files_leaves_no_record_of_a_check(run, monkeypatch):
    assert main(["export", str(run), "--to", "c", "--out", "policy"]) == 0
    replace, done = os.replace, []

    def killed(source, target):
        if done:
            raise KeyboardInterrupt
        done.append(target)
        replace(source, target)

    monkeypatch.setattr(exporting.os, "replace", killed)
    assert main(["export", str(run), "--to", "c", "--stochastic", "--out", "policy"]) == 130
    assert {file.name for file in Path("policy").iterdir()} >= {"surefoot_policy.c", "surefoot_policy.h"}
    assert not Path("policy/parity.json").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), FileNotFoundError(2, "No usable folder")])
def test_no_room_for_temporary_files_is_an_error_of_one_line(run, capsys, monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr("surefoot.deploy.exporter.TemporaryDirectory", refuse)
    assert main(["export", str(run), "--to", "c"]) == 1
    assert f"temporary files cannot be used: {error.strerror}" in capsys.readouterr().err


def test_a_folder_that_is_a_link_is_not_written_to(run, capsys, tmp_path):
    (tmp_path / "precious").mkdir()
    (run / "exports").symlink_to(tmp_path / "precious")
    assert main(["export", str(run), "--to", "c"]) == 4
    assert "is a link" in capsys.readouterr().err
    assert not list((tmp_path / "precious").iterdir())


@pytest.mark.slow
def test_the_c_agent_plays_a_hundred_episodes_to_the_end(tmp_path):
    """A trained CartPole policy (packed with `surefoot pack`), stepped from C in Gymnasium's own env."""
    run = unpack(FIXTURES / "cartpole-500.zip", tmp_path / "run")
    folder = tmp_path / "policy"
    assert main(["export", str(run.path), "--to", "c", "--out", str(folder)]) == 0
    words = ["gcc", "-std=c99", "-O2", "-shared", "-fPIC", "surefoot_policy.c", "-o", "policy.so"]
    subprocess.run(words, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "policy.so"))
    state, action = (ctypes.c_float * 4096)(), np.zeros(1, np.float32)
    env, agent = gym.make("CartPole-v1"), surefoot.load(run, backend="numpy")
    for episode in range(100):
        obs, _ = env.reset(seed=episode)
        library.surefoot_policy_begin(state)
        length, over = 0, False
        while not over:
            obs = np.ascontiguousarray(obs, np.float32)
            found = library.surefoot_policy_step(
                obs.ctypes.data_as(ctypes.c_void_p), None, state, action.ctypes.data_as(ctypes.c_void_p)
            )
            assert found == 0
            if episode < 3:
                assert int(action[0]) == agent.predict(obs)[0]
            obs, _, terminated, truncated, _ = env.step(int(action[0]))
            length, over = length + 1, terminated or truncated
        assert length == 500


@pytest.mark.slow
def test_stochastic_and_json(run, capsys):
    assert main(["export", str(run), "--to", "c", "--stochastic", "--seed", "7", "--json", "--out", "here"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["folder"] == "here"
    assert all(each["passed"] for each in found["parity"].values())
    assert "#define SUREFOOT_POLICY_SEED UINT64_C(7)" in Path("here/surefoot_policy.h").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_run_whose_env_is_gone_is_tried_on_random_observations(run, capsys):
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, "env_from_python": True}), encoding="utf-8")
    assert main(["export", str(run), "--to", "c"]) == 0
    out, err = capsys.readouterr()
    assert "note: the env cannot be made here, so only random observations were tried" in err
    assert "recorded" not in out


ODD = """from gymnasium.envs.classic_control import CartPoleEnv
class Odd(CartPoleEnv):
    pass
"""


@pytest.mark.parametrize("kind", ["c", "onnx"])
def test_the_policy_of_a_run_from_elsewhere_needs_no_env(tmp_path, capsys, monkeypatch, kind):
    for needed in ("onnx", "onnxruntime") if kind == "onnx" else ():
        pytest.importorskip(needed)
    monkeypatch.setattr(exporting, "OBSERVATIONS", 320)
    Path("odd.py").write_text(ODD, encoding="utf-8")
    settings = {"max_episode_steps": 20, "num_envs": 4, "total_steps": 64, "rollout_length": 16}
    surefoot.train("odd.py:Odd", run_dir="run", progress=False, **settings)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert main(["export", "run", "--to", kind, "--out", "untrusted"]) == 0
    out, err = capsys.readouterr()
    assert "only random observations were tried: recorded ones need --trust" in err
    assert "(env = odd.py:Odd)" in err
    assert "recorded" not in out
    assert main(["export", "run", "--to", kind, "--out", "trusted", "--trust"]) == 0
    assert "recorded observations" in capsys.readouterr().out
    Path("odd.py").unlink()
    assert main(["export", "run", "--to", kind, "--out", "gone", "--trust"]) == 0
    out, err = capsys.readouterr()
    assert "the env cannot be made here, so only random observations were tried: " in err
    assert "the file odd.py does not exist" in err
    assert "recorded" not in out
