"""One flipped bit, a torn file, files of two steps, of another env, another algorithm, a newer version."""

import json
import os
import shutil

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.errors import CheckpointError
from surefoot.runs.checkpoints import read_verified
from tests.faults.runs import best, copy, newest, same, sign

FILES = ("policy.safetensors", "policy.json", "state.safetensors", "state.json", "MANIFEST.json")


def flip(file, where):
    data = bytearray(file.read_bytes())
    data[where % len(data)] ^= 1
    file.write_bytes(data)


def previous(run):
    """The newest checkpoint but one."""
    return newest(run).with_name("1440")


@pytest.fixture
def run(whole, tmp_path):
    found = copy(whole, tmp_path / "hurt")
    assert (newest(found).name, best(found).name) == ("1600", "1280")
    return found


def assert_passed_over(run, whole, capsys, reason):
    """Loading takes the one before, resuming too and says so, `--strict` refuses; the end is the same."""
    agent, expected = surefoot.load(run), surefoot.load(previous(whole))
    assert all((agent.policy.state_dict()[name] == x).all() for name, x in expected.policy.state_dict().items())
    for command in (["resume", str(run.path)], ["eval", str(run.path), "--episodes", "1"]):
        assert main([*command, "--strict"]) == 4
        assert reason in capsys.readouterr().err
    assert main(["eval", str(run.path), "--episodes", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["checkpoint"] == "1440"
    assert "skipped: " in captured.err
    assert reason in captured.err
    assert main(["resume", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "resuming" in said
    assert "at step 1,440" in said
    assert "skipped: " in said
    assert reason in said
    same(run, whole)


@pytest.mark.parametrize("where", [3, -3], ids=["at the start", "at the end"])
@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_found_and_the_checkpoint_before_serves(run, whole, capsys, name, where):
    flip(newest(run) / name, where)
    assert_passed_over(run, whole, capsys, "1600")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 0.5, -2], ids=["empty", "half", "two bytes short"])
def test_a_truncated_file_is_found(run, name, size):
    file = newest(run) / name
    whole_size = file.stat().st_size
    os.truncate(file, whole_size - 2 if size == -2 else int(whole_size * size))  # the last byte ends the last line
    surefoot.load(run)
    with pytest.raises(CheckpointError):
        surefoot.load(run, "1600")
    with pytest.raises(CheckpointError):
        surefoot.resume(run, strict=True)


@pytest.mark.parametrize("name", [name for name in FILES if name != "policy.json"])  # which is the same in all
def test_a_file_of_another_step_is_found(run, whole, capsys, name):
    shutil.copy(previous(run) / name, newest(run) / name)
    assert_passed_over(run, whole, capsys, "1600")


def test_one_flipped_bit_anywhere_in_a_manifest_is_found(run):
    file = newest(run) / "MANIFEST.json"
    data, missed = file.read_bytes(), []
    for where, byte in enumerate(data):
        bit = where % 8
        file.write_bytes(data[:where] + bytes([byte ^ 1 << bit]) + data[where + 1 :])
        try:
            read_verified(newest(run))
        except CheckpointError:
            continue
        start = data.rfind(b"\n", 0, where) + 1
        missed.append((data[start : data.find(b"\n", where)].decode(), bit))
    assert missed == []


def test_a_missing_manifest_is_found(run, whole, capsys):
    (newest(run) / "MANIFEST.json").unlink()
    assert_passed_over(run, whole, capsys, "has no MANIFEST.json")


def test_a_missing_file_is_found(run, whole, capsys):
    (newest(run) / "state.json").unlink()
    assert_passed_over(run, whole, capsys, "cannot be read")


def assert_the_newest_serves(run, whole, capsys):
    """With the pointer broken, the newest that verifies; what was wrong is said, and the end is the same."""
    agent, expected = surefoot.load(run), surefoot.load(whole)
    assert all((agent.policy.state_dict()[name] == x).all() for name, x in expected.policy.state_dict().items())
    surefoot.resume(run)
    assert "LATEST" in (said := capsys.readouterr().out) or "skipped" in said
    assert (run.path / "metrics.jsonl").read_bytes() == (whole.path / "metrics.jsonl").read_bytes()
    assert run.result["eval"] == whole.result["eval"]


@pytest.mark.parametrize("where", range(4))
def test_a_flipped_bit_in_latest_leads_to_the_newest_checkpoint_all_the_same(run, whole, capsys, where):
    pointer = run.path / "checkpoints" / "LATEST"
    for bit in (0, 2, 4, 7):  # another digit, no digit, no text
        data = bytearray(b"1600\n")
        data[where] ^= 1 << bit
        pointer.write_bytes(data)
        assert_the_newest_serves(run, whole, capsys)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"9" * 5000, b"-1", b"1e3", "١٦٠٠".encode(), b"1600\x00", b"."])
def test_any_rubbish_in_latest_leads_to_the_newest_checkpoint(run, whole, capsys, content):
    (run.path / "checkpoints" / "LATEST").write_bytes(content)
    assert_the_newest_serves(run, whole, capsys)


def test_a_missing_latest_leads_to_the_newest_checkpoint(run, whole, capsys):
    (run.path / "checkpoints" / "LATEST").unlink()
    assert_the_newest_serves(run, whole, capsys)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"9" * 5000, b"-1", b"1600\x00"])
def test_any_rubbish_in_best_is_an_error_until_the_run_goes_on(run, whole, content):
    (run.path / "checkpoints" / "BEST").write_bytes(content)
    with pytest.raises(CheckpointError):
        surefoot.load(run, "best")
    same(surefoot.resume(run, progress=False), whole)


def test_all_checkpoints_damaged_is_an_error_and_never_a_start_from_zero(run, capsys):
    for folder in (run.path / "checkpoints").glob("*/state.json"):
        flip(folder, 9)
    assert main(["resume", str(run.path)]) == 4
    assert "this run has no intact checkpoint" in capsys.readouterr().err
    shutil.rmtree(run.path / "checkpoints" / "1280")
    for name in ("1440", "1600"):
        shutil.rmtree(run.path / "checkpoints" / name)
    assert main(["resume", str(run.path)]) == 4  # LATEST says that there was one


def test_rows_that_are_missing_from_the_metrics_are_an_error(run, capsys):
    os.truncate(run.path / "metrics.jsonl", 100)
    assert main(["resume", str(run.path)]) == 4
    assert "rows are missing" in capsys.readouterr().err
    os.unlink(run.path / "metrics.jsonl")
    assert main(["resume", str(run.path)]) == 4


def resume_strictly(run, capsys):
    code = main(["resume", str(run.path), "--strict"])
    return code, capsys.readouterr().err


def test_another_env_another_algorithm_and_a_newer_schema_are_three_distinct_errors(run, capsys):
    folder, said = newest(run), []
    for facts in ({"env": "Acrobot-v1"}, {"env": "CartPole-v1", "algo": "trpo"}, {"algo": "ppo", "schema": 99}):
        sign(folder, **facts)
        code, err = resume_strictly(run, capsys)
        assert code == 4
        said.append(err)
    assert "was trained with env Acrobot-v1, not CartPole-v1" in said[0]
    assert "was trained with algo trpo, not ppo" in said[1]
    assert "has schema 99" in said[2]
    assert "a newer surefoot wrote it" in said[2]


def test_a_newer_schema_is_not_silently_replaced_by_an_older_checkpoint(run, capsys):
    sign(newest(run), schema=99)
    assert main(["resume", str(run.path)]) == 0
    assert "has schema 99" in capsys.readouterr().out


def test_the_checkpoint_of_another_env_put_into_a_run_is_refused(run, tmp_path, capsys):
    """Also where its manifest lies about it: the spaces give it away."""
    settings = {**run.config, "env": "Acrobot-v1", "run_dir": tmp_path / "other", "progress": False, "preset": "none"}
    other = surefoot.train(**settings)
    shutil.rmtree(newest(run))
    shutil.copytree(newest(other), newest(run))
    code, err = resume_strictly(run, capsys)
    assert code == 4
    assert "was trained with env Acrobot-v1, not CartPole-v1" in err
    sign(newest(run), env="CartPole-v1")
    code, err = resume_strictly(run, capsys)
    assert code == 4
    assert "observation_space is not the one" in err
    with pytest.raises(CheckpointError):
        surefoot.resume(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", b"{}"),
        ("state.json", b"[]"),
        ("state.json", b"null"),
        ("state.json", b"\x80\x04"),
        ("state.json", b'{"step": "soon"}'),
        ("state.json", b'{"$tensor": "nothing"}'),
        ("state.safetensors", b""),
        ("state.safetensors", b"\xff" * 64),
        ("policy.json", b"{}"),
        ("policy.json", b"[1]"),
        ("policy.json", b"\x80\x04"),
        ("policy.json", b'{"observation_space": 1, "action_space": [], "policy": 3, "critic": null}'),
        ("policy.safetensors", b""),
        ("policy.safetensors", b"\x00" * 8),
    ],
)
def test_rubbish_with_a_right_hash_is_an_error_and_not_a_crash(run, capsys, name, content):
    (newest(run) / name).write_bytes(content)
    sign(newest(run))
    for words in (["resume", str(run.path), "--strict"], ["eval", str(run.path), "--strict", "--episodes", "1"]):
        assert main(words) in ((4,) if words[0] == "resume" or name.startswith("policy") else (0,))
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["step", "seconds", "logs", "learner", "collector", "journal", "selection", "globals"])
@pytest.mark.parametrize("value", [None, [], "x"])
def test_a_state_of_wrong_types_with_a_right_hash_is_an_error_and_not_a_crash(run, capsys, key, value):
    file = newest(run) / "state.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, key: value}))
    sign(newest(run))
    code = main(["resume", str(run.path), "--strict"])
    assert code == (0 if (key, value) == ("globals", None) else 4), capsys.readouterr().err
