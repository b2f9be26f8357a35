"""A run directory from a stranger: nothing in it is executed, nothing outside of it is touched, errors are ours."""

import json
import os
import pickle
import resource
import shutil
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

import surefoot
from surefoot.cli.main import main
from surefoot.errors import SurefootError
from surefoot.runs import checkpoints
from surefoot.runs.locate import locate_checkpoint
from tests.faults.runs import TINY, command, copy, newest, opened, sign

CANARY = "the canary sings"
SHORT = ["--total-steps=32", "--eval-episodes=0", "--checkpoint-every=32"]
RUN = "runs/stranger"


class Evil:
    """Unpickled, it leaves a file where it was unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(CANARY),)


def evil_pickle():
    return pickle.dumps(Evil(), protocol=2)


def evil_torch():
    torch.save({"weights": Evil()}, "evil.pt")
    return Path("evil.pt").read_bytes()


def evil_numpy():
    np.save("evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    return Path("evil.npy").read_bytes()


def play(run, *words):
    return main([*words[:1], run, "--max-steps=2", "--episodes=1", *words[1:]])


def train(run, *words):
    return main(["train", *words, "--run-dir=new"])


def look(run):
    """What Python users read of a run; each may refuse."""
    for name in ("config", "metrics", "result"):
        try:
            getattr(opened(Path(run)), name)
        except SurefootError:
            continue


PATHS = {  # every way into a run directory
    "load": surefoot.load,
    "light": lambda run: surefoot.load(run, backend="numpy"),
    "look": look,
    "resume": lambda run: main(["resume", run]),
    "eval": lambda run: play(run, "eval"),
    "video": lambda run: play(run, "video", "--untrained"),
    "list": lambda run: main(["list", "runs"]),
    "like": lambda run: train(run, "--like", run, *SHORT),
    "init-from": lambda run: train(run, *command(eval_every=None)[1:], "--init-from", run, *SHORT),
}


def traceback_of(path, run):
    """How one way into a run ends: nothing if as it should, else the traceback of somebody else's error."""
    try:
        PATHS[path](str(run))
    except SurefootError:
        return None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in last if "/surefoot/" in frame.filename][-1]
        where = f"{ours.filename.partition('/surefoot/')[2]}:{ours.lineno} in {ours.name}"
        return f"{type(error).__name__}: {error} ({where})"
    finally:
        shutil.rmtree("new", ignore_errors=True)
    return None


def attack(whole, path, attacks):
    """Apply each attack to a fresh copy of the run, go one way into it, and gather what went wrong."""
    wrong = {}
    for name, harm in attacks.items():
        run = copy(whole, Path(RUN))
        harm(run)
        found = traceback_of(path, run.path)
        if found:
            wrong[name] = found
        assert not Path(CANARY).exists(), f"{name} was executed by {path}"
        shutil.rmtree(RUN)
    return wrong


RUN_FILES = (
    "config.toml",
    "manifest.json",
    "metrics.jsonl",
    "timings.jsonl",
    "episodes.csv",
    "status.json",
    "result.json",
    "log.txt",
    "trackers.json",
    ".lock",
    "checkpoints/LATEST",
    "checkpoints/BEST",
)
CHECKPOINT_FILES = ("policy.safetensors", "policy.json", "state.safetensors", "state.json", "MANIFEST.json")


def put(name, content):
    def harm(run):
        (run.path / name).write_bytes(content)

    return harm


def forge(name, content):
    """Into all checkpoints, with a hash that fits."""

    def harm(run):
        for folder in run.path.glob("checkpoints/*/"):
            (folder / name).write_bytes(content)
            if name != "MANIFEST.json":
                sign(folder)

    return harm


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", PATHS)
def test_a_malicious_pickle_is_never_executed_under_any_name(whole, path):
    raw, zipped, array = evil_pickle(), evil_torch(), evil_numpy()
    attacks = {name: put(name, raw) for name in RUN_FILES}
    attacks |= {f"forged {name}": forge(name, raw) for name in CHECKPOINT_FILES}
    attacks |= {f"torch {name}": forge(name, zipped) for name in ("policy.safetensors", "state.safetensors")}
    attacks |= {f"numpy {name}": forge(name, array) for name in ("policy.safetensors",)}

    def litter(run):
        for folder in (run.path, run.path / "checkpoints", newest(run)):
            for name, content in {"policy.pkl": raw, "policy.pt": zipped, "data.npy": array, "x.pickle": raw}.items():
                (folder / name).write_bytes(content)

    assert attack(whole, path, {**attacks, "more files": litter}) == {}


DEEP = b"[" * 100_000


def put_json(name, value):
    return put(name, value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["look", "resume", "eval", "list", "like"])
def test_files_of_wrong_content_end_in_an_error_of_ours(whole, path):
    odd = {"a list": [], "a number": 5, "a text": "x", "null": None, "nothing": b"", "half": b'{"a": ', "deep": DEEP}
    attacks = {
        f"{name} {what}": put_json(name, value)
        for name in ("manifest.json", "status.json", "metrics.jsonl", "result.json")
        for what, value in odd.items()
    }
    attacks["metrics.jsonl a row of nothing"] = put("metrics.jsonl", b"{}\n[]\n5\nnull\n")
    attacks["metrics.jsonl a row of texts"] = put("metrics.jsonl", b'{"step": "x", "eval_return": {}}\n')
    attacks["status.json a state that is none"] = put("status.json", b'{"state": [], "step": "x", "eval_return": []}')
    attacks["manifest.json versions"] = put("manifest.json", b'{"versions": 5, "env": [], "seed": {}}')
    assert attack(whole, path, attacks) == {}


@pytest.mark.parametrize("path", ["look", "resume", "eval", "like"])
def test_settings_of_wrong_content_end_in_an_error_of_ours(whole, path):
    lines = {
        "deep": "seed = " + DEEP.decode(),
        "no text": 'env = 5\nalgo = "ppo"\n',
        "no algorithm": 'env = "CartPole-v1"\nalgo = []\n',
        "a table": '[env]\nx = 1\n[algo]\ny = "2"\n',
        "unknown": 'env = "CartPole-v1"\nalgo = "ppo"\nevil = "x"\n',
        "NaN": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1\nlearning_rate = nan\n',
        "dates": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1979-05-27\n',
        "no seed": 'env = "CartPole-v1"\nalgo = "ppo"\n',
        "wrappers": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1\nwrappers = [1, {}]\n',
        "no env": 'algo = "ppo"\nseed = 1\n',
        "a path": 'env = "../../etc/passwd"\nalgo = "ppo"\nseed = 1\n',
        "init_from": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1\ninit_from = "../../../nowhere"\n',
        "hidden": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1\nhidden_sizes = [[8], "x"]\n',
        "kwargs": 'env = "CartPole-v1"\nalgo = "ppo"\nseed = 1\nenv_kwargs = "[1]"\n',
        "NUL": 'env = "Cart\\u0000Pole"\nalgo = "ppo"\nseed = 1\n',
    }
    assert attack(whole, path, {what: put("config.toml", text.encode()) for what, text in lines.items()}) == {}


def change(**facts):
    """A hand-made MANIFEST.json in every checkpoint."""

    def harm(run):
        for file in run.path.glob("checkpoints/*/MANIFEST.json"):
            manifest = {**json.loads(file.read_text()), **facts}
            if hasattr(checkpoints, "seal"):  # a forger would not forget it
                manifest["seal"] = checkpoints.seal(manifest)
            file.write_text(json.dumps(manifest))

    return harm


def entry(name, size=2, sha256="44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"):
    """A file `{}`."""
    return change(files={name: {"bytes": size, "sha256": sha256}})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", ["load", "resume", "eval", "init-from"])
def test_hostile_manifests_are_refused(whole, path):
    Path("x").write_text("{}", encoding="utf-8")
    Path("runs").mkdir()
    names = ("../x", "../../x", "../../../../x", str(Path("x").absolute()), "/etc/passwd", "", ".", "..", "a/b", "x\0y")
    attacks = {f"name {name!r}": entry(name) for name in names}
    attacks |= {f"size {size!r}": entry("policy.json", size) for size in (10**30, -1, "many", None, [], 1e400, True)}
    attacks |= {f"hash {value!r}": entry("policy.json", 2, value) for value in (None, 5, [], {}, "")}
    attacks |= {f"files {value!r}": change(files=value) for value in (None, 5, [], {}, "x", {"policy.json": None})}
    attacks |= {f"step {value!r}": change(step=value) for value in (None, "1600", [], 10**400)}
    attacks |= {f"schema {value!r}": change(schema=value) for value in (None, "1", [], {}, 10**400, -1)}
    attacks |= {f"env {value!r}": change(env=value) for value in (None, 5, [])}
    assert attack(whole, path, attacks) == {}


@pytest.mark.parametrize("pointer", ["LATEST", "BEST"])
def test_a_pointer_out_of_the_run_is_not_followed(whole, tmp_path, pointer):
    run, other = copy(whole, tmp_path / "run"), copy(whole, tmp_path / "elsewhere")
    for where in ("../../elsewhere/checkpoints/1600", str(newest(other)), "1600/../../../elsewhere/checkpoints/1600"):
        (run.path / "checkpoints" / pointer).write_text(f"{where}\n")
        with pytest.raises(SurefootError) if pointer == "BEST" else pytest.MonkeyPatch.context():
            folder = locate_checkpoint(run.path, "latest" if pointer == "LATEST" else "best")[0]
            assert folder.resolve().is_relative_to(run.path)


@pytest.mark.parametrize("name", ["²", "٣", "1_600", "0x10", "9" * 200, "1600.0", "-5", "16 00"])
def test_odd_directories_among_the_checkpoints_are_no_checkpoints(whole, tmp_path, name):
    run = copy(whole, tmp_path / "run")
    (run.path / "checkpoints" / name).mkdir()
    surefoot.load(run)
    surefoot.resume(run, progress=False, total_steps=1632)
    assert newest(run).name == "1632"


# Links that lead out of the run


FOLDERS = ("tensorboard", "videos", "crash")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["load", "resume", "eval", "list", "like", "init-from"])
def test_nothing_outside_of_a_run_is_written_through_a_link(whole, tmp_path, path):
    """A `.lock` that is a link to somebody's keys, logs that are links to somebody's work."""
    changed, precious = [], tmp_path / "precious"
    for name in (*RUN_FILES, *FOLDERS):
        run = copy(whole, tmp_path / "runs" / "stranger")
        file = run.path / name
        if name not in FOLDERS:
            data = file.read_bytes() if file.exists() else b"{}"
            file.unlink(missing_ok=True)
            precious.write_bytes(data + (data.splitlines(True)[-1] if name.endswith(("jsonl", "txt")) else b"\n"))
        else:
            shutil.rmtree(file, ignore_errors=True)
            precious.mkdir()
        file.symlink_to(precious)
        before = content(precious)
        assert traceback_of(path, run.path) is None
        if content(precious) != before:
            changed.append(name)
        shutil.rmtree(run.path)
        shutil.rmtree(precious) if precious.is_dir() else precious.unlink()
    assert changed == []


def content(path):
    return sorted(path.iterdir()) if path.is_dir() else path.read_bytes()


def test_rests_and_checkpoints_that_are_links_are_not_followed_when_they_are_removed(whole, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "work").write_text("years of it")
    run = copy(whole, tmp_path / "run")
    checkpoints = run.path / "checkpoints"
    (checkpoints / ".tmp-1-1").symlink_to(precious)
    (checkpoints / "5").symlink_to(precious)
    (checkpoints / "aside-5-1").symlink_to(precious)
    surefoot.resume(run, progress=False, total_steps=2400)
    assert (precious / "work").read_text() == "years of it"


def with_little_memory(path, run):
    """In a child: one way into the run, with two gigabytes more than it has now."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**31, used + 2**31))
    found = traceback_of(path, run)
    print(found or "as it should")
    return 1 if found else 0


def endless(file):
    file.symlink_to("/dev/zero")


def silent(file):
    os.mkfifo(file)


def huge(file):
    with open(file, "wb") as handle:
        handle.truncate(2**40)


@pytest.mark.parametrize("kind", [endless, silent, huge])
@pytest.mark.parametrize("name", ["policy.safetensors", "MANIFEST.json"])
def test_a_file_without_end_is_refused_and_not_read(nursery, whole, tmp_path, name, kind):
    run = copy(whole, tmp_path / "run")
    for file in run.path.glob(f"checkpoints/*/{name}"):
        file.unlink()
        kind(file)
    nursery.run(with_little_memory, path="load", run=run.path).ended(0)


# Code that only a file names


EVIL_CODE = f"""
from pathlib import Path
import gymnasium as gym
import surefoot
Path({CANARY!r}).touch()
class Env(gym.Wrapper):
    def __init__(self, **kwargs):
        super().__init__(gym.make("CartPole-v1", **kwargs))
class Wrapper(gym.Wrapper):
    pass
class Callback(surefoot.Callback):
    pass
if "Evil-v0" not in gym.registry:
    gym.register("Evil-v0", entry_point=Env, max_episode_steps=500)
"""
NAMED = {
    "env": 'env = "evil.py:Env"',
    "env of a module": 'env = "evil_module:Evil-v0"',
    "wrappers": 'wrappers = ["evil.py:Wrapper"]',
    "wrappers with arguments": "wrappers = ['TimeLimit{\"max_episode_steps\": 9}', ' evil_module:Wrapper {}']",
    "callbacks": 'callbacks = ["evil.py:Callback"]',
    "eval_env": 'eval_env = "evil.py:Env"',
}
WAYS = {  # those that make an env, and so would need the code
    "resume": ["resume", RUN, "--total-steps=1632"],
    "eval": ["eval", RUN, "--episodes=1", "--max-steps=2"],
    "video": ["video", RUN, "--episodes=1", "--max-steps=2"],
    "like": ["train", "--like", RUN, *SHORT, "--eval-episodes=1", "--run-dir=new"],
    "config": ["train", "--config", f"{RUN}/config.toml", *SHORT, "--eval-episodes=1", "--run-dir=new"],
}


def naming(line, whole):
    """A run whose settings name code."""
    run = copy(whole, Path(RUN))
    config = run.path / "config.toml"
    key = line.partition(" ")[0]
    kept = [row for row in config.read_text().splitlines() if not row.startswith(f"{key} =")]
    config.write_text("\n".join([line, *kept]))
    if key == "env":
        for folder in run.path.glob("checkpoints/*/"):
            sign(folder, env=line.split('"')[1])
    return run


@pytest.mark.sampled(8)
@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("way", WAYS)
def test_code_that_only_a_file_names_needs_a_word_from_the_user(whole, tmp_path, monkeypatch, capsys, way, named):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)
    for name in ("evil.py", "evil_module.py"):
        Path(name).write_text(EVIL_CODE, encoding="utf-8")
    naming(NAMED[named], whole)
    unused = named == "callbacks" and way in ("eval", "video")
    assert main(WAYS[way]) == 2
    said = capsys.readouterr().err
    assert "names code that would be imported or executed" in said
    assert "--trust" in said
    assert not Path(CANARY).exists()
    assert main([*WAYS[way], "--trust"]) == 0
    assert Path(CANARY).exists() or unused


@pytest.mark.parametrize("name", ["given", "default", "preset none"])
def test_a_file_of_settings_is_no_more_trusted_for_its_name(whole, capsys, name):
    """Also if it is called as we call what was typed."""
    Path("evil.py").write_text(EVIL_CODE, encoding="utf-8")
    shutil.copy(naming(NAMED["env"], whole).path / "config.toml", name)
    assert main(["train", "--config", name, *SHORT, "--run-dir=new"]) == 2
    assert "names code that would be imported or executed" in capsys.readouterr().err
    assert not Path(CANARY).exists()


@pytest.mark.parametrize("named", NAMED)
def test_loading_and_listing_never_need_the_code(whole, named, capsys):
    Path("evil.py").write_text(EVIL_CODE, encoding="utf-8")
    run = naming(NAMED[named], whole)
    surefoot.load(run)
    surefoot.load(run, "best")
    assert main(["list", "runs"]) == 0
    assert main(["train", *command(eval_every=None)[1:], "--init-from", RUN, *SHORT, "--run-dir=new"]) == 0
    assert not Path(CANARY).exists()


def test_a_policy_to_start_from_brings_no_settings_but_its_own(whole, capsys):
    """Its description is a stranger's file, too."""
    Path("evil.py").write_text(EVIL_CODE, encoding="utf-8")
    run = copy(whole, Path(RUN))
    for folder in run.path.glob("checkpoints/*/"):
        facts = json.loads((folder / "policy.json").read_text())
        facts["policy"] |= {"callbacks": ["evil.py:Callback"], "wrappers": ["evil.py:Wrapper"]}
        (folder / "policy.json").write_text(json.dumps(facts))
        sign(folder)
    words = [word for word in command(eval_every=None)[1:] if not word.startswith("--hidden-sizes") and word != "8"]
    for trust in ([], ["--trust"]):
        assert main(["train", *words, "--init-from", RUN, *SHORT, "--run-dir=new", *trust]) in (0, 2, 4)
    assert not Path(CANARY).exists()


def test_a_checkpoint_that_names_an_encoder_of_its_own_executes_nothing(whole, capsys):
    """The description of a policy is another file than the settings, and as little trusted."""
    Path("evil.py").write_text(EVIL_CODE, encoding="utf-8")
    run = copy(whole, Path(RUN))
    for folder in run.path.glob("checkpoints/*/"):
        facts = json.loads((folder / "policy.json").read_text())
        facts["policy"]["encoder"] = "evil.py:Encoder"
        (folder / "policy.json").write_text(json.dumps(facts))
        sign(folder)
    for checkpoint in ("latest", "best"):
        with pytest.raises(surefoot.UsageError, match=r"encoder = evil\.py:Encoder"):
            surefoot.load(run, checkpoint)
    for way in ("eval", "video"):
        assert main(WAYS[way]) == 2
        assert "encoder = evil.py:Encoder" in capsys.readouterr().err
    assert main(["train", *command(eval_every=None)[1:], "--init-from", RUN, *SHORT, "--run-dir=new"]) == 2
    assert "encoder = evil.py:Encoder" in capsys.readouterr().err
    assert not Path(CANARY).exists()
    with pytest.raises(surefoot.UsageError, match=r"there is no 'Encoder' in evil\.py"):
        surefoot.load(run, trust=True)
    assert Path(CANARY).exists()


def test_code_that_was_typed_needs_no_word(capsys):
    Path("mine.py").write_text(EVIL_CODE, encoding="utf-8")
    words = command("new", **{**TINY, "env": "mine.py:Env", "total_steps": 32})
    assert main(words) == 0
    assert Path(CANARY).exists()
