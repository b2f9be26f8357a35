"""What a run says of the machine that it runs on: in the manifest, in its greeting, when it is resumed elsewhere."""

import json
import os
import subprocess
import sys

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.kernels import library
from surefoot.runs.files import read_json

QUIET = {"progress": False, "eval_episodes": 0, "preset": "none", "num_envs": 2, "rollout_length": 64, "seed": 1}
WORDS = ["--preset", "none", "--num-envs", "2", "--rollout-length", "64", "--total-steps", "256"]
WORDS += ["--eval-episodes", "1"]


@pytest.fixture
def run():
    return surefoot.train("CartPole-v1", **QUIET, total_steps=256)


def rewrite(run, **facts):
    manifest = read_json(run.directory.manifest) | facts
    run.directory.manifest.write_text(json.dumps(manifest))


def resumed(run):
    """What it says on being resumed."""
    log = run.directory.log
    before = len(log.read_text())
    surefoot.resume(run.path, total_steps=512, progress=False)
    return log.read_text()[before:]


def test_the_manifest_says_what_decides_about_the_last_bits(run):
    manifest = read_json(run.directory.manifest)
    assert manifest["kernels"]["variant"] == library.variant()
    assert manifest["kernels"]["compiler"].split()[0] in ("GCC", "Debian", "Clang", "Apple", "Ubuntu")
    assert manifest["threads"] >= 1
    assert manifest["torch_instructions"]
    assert manifest["machine"]["processor"]


def test_a_resume_on_the_same_machine_says_nothing_of_it(run):
    assert "exact" not in resumed(run)


def test_a_resume_on_another_kind_of_machine_says_that_it_is_not_exact(run):
    rewrite(run, kernels={"variant": "v1", "compiler": "GCC 4.2"}, torch_instructions="AVX9")
    said = resumed(run)
    assert f"kernels {library.variant()} here, v1 there" in said
    assert "GCC 4.2 there" in said
    assert "AVX9 there" in said


def test_a_run_of_pytorch_alone_does_not_ask_for_the_kernels(run):
    other = surefoot.train("CartPole-v1", **QUIET, total_steps=256, engine="torch")
    rewrite(other, kernels={"variant": "v1"})
    assert "exact" not in resumed(other)


@pytest.mark.parametrize("forged", [None, 3, "v3", [], {}, {"variant": {}}])
def test_a_manifest_of_any_shape_is_no_traceback(run, forged):
    rewrite(run, kernels=forged)
    assert "not exact to the last bit" in resumed(run)


def test_an_older_run_does_not_know(run):
    manifest = read_json(run.directory.manifest)
    del manifest["kernels"], manifest["torch_instructions"]
    run.directory.manifest.write_text(json.dumps(manifest))
    assert "does not say which instruction set it began with" in resumed(run)


def test_like_says_it_too(run, capsys):
    rewrite(run, kernels={"variant": "v1", "compiler": "GCC 4.2"})
    assert main(["train", "--like", str(run.path), "--dry-run"]) == 0
    assert "v1 there" in capsys.readouterr().err


def test_the_greeting_says_that_kernels_are_missing(monkeypatch, capsys):
    missing = library.NotBuilt("the native kernels could not be built: error: no such header")
    monkeypatch.setattr(library, "find", lambda name: (_ for _ in ()).throw(missing))
    library.load.cache_clear()
    try:
        assert main(["train", "CartPole-v1", *WORDS]) == 0
        said = capsys.readouterr().out
        assert "could not be built: error: no such header" in said
        assert "note: without its native kernels surefoot is many times slower; `surefoot doctor` tells why" in said
        assert main(["train", "CartPole-v1", *WORDS, "--engine", "torch"]) == 0
        assert "doctor" not in capsys.readouterr().out
        assert main(["doctor"]) == 0
        assert "PyTorch does everything" in capsys.readouterr().out
    finally:
        library.load.cache_clear()


def test_doctor_without_an_env_reports_the_installation(capsys):
    assert main(["doctor", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["kernels"]["variant"] == library.variant()
    assert found["kernels"]["troubles"] == {}
    assert found["threads"] >= 1
    assert "everything is in order" in captured.err
    assert main(["doctor", "--episodes", "5"]) == 2
    assert "--episodes applies to an environment; give one" in capsys.readouterr().err


@pytest.mark.slow
def test_a_forced_variant_that_is_none_ends_every_command_that_needs_it():
    code = "import sys; from surefoot.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "train", "CartPole-v1", *WORDS]
    done = subprocess.run(command, env={**os.environ, library.FORCED: "v9"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "SUREFOOT_KERNELS=v9 is not a variant of the native kernels here; available:" in done.stderr
