"""No text of a stranger's reaches a terminal or a log raw: names, ids, manifests, settings, errors of environments."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.runs.files import write_json
from surefoot.training.reports.progress import LiveProgress
from tests.faults.runs import TINY, command, copy

NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\x7f\r"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069]")
SHORT = ["--total-steps=32", "--eval-episodes=0", "--checkpoint-every=32"]
ENV = f"""
import gymnasium as gym
NASTY = {NASTY!r}
class Env(gym.Wrapper):
    def __init__(self, fault="", render_mode=None):
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self.fault, self.count = fault, 0
        if fault == "made":
            raise RuntimeError(NASTY)
    def __str__(self):
        return NASTY
    def reset(self, **kwargs):
        if self.fault == "reset":
            raise RuntimeError(NASTY)
        return self.env.reset(**kwargs)
    def step(self, action):
        self.count += 1
        if self.fault == "step" and self.count > 40:
            raise RuntimeError(NASTY)
        return self.env.step(action)
"""


def clean(text):
    assert not RAW.search(text), RAW.search(text)
    assert "evil" not in text or r"\u202eevil" in text
    return text


@pytest.fixture
def run(whole, tmp_path):
    """A run of a nasty name in which every file says nasty things."""
    found = copy(whole, tmp_path / "runs" / NASTY.replace("/", ""))
    manifest = json.loads(found.directory.manifest.read_text())
    manifest |= {"env": NASTY, "algo": NASTY, "engine": NASTY, "versions": {"torch": NASTY, "numpy": [NASTY]}}
    write_json(found.directory.manifest, manifest)
    write_json(found.directory.status, {"state": NASTY, "step": 5, "why": NASTY})
    return found


def commands(run):
    path = str(run.path)
    yield from (["list", "runs"], ["list", "runs", "--json"], ["eval", path, "--episodes=1"])
    yield ["resume", path, "--total-steps=1632"]
    yield ["video", path, "--max-steps=2"]
    yield ["train", "--like", path, *SHORT, "--run-dir=new"]
    yield ["train", *command(eval_every=None)[1:], "--init-from", path, *SHORT, "--run-dir=other"]
    yield ["eval", "latest", "--checkpoint", NASTY]
    yield from (["eval", NASTY], ["train", NASTY], [NASTY], ["train", "CartPole-v1", f"--{NASTY}"], ["explain", NASTY])
    yield ["train", "CartPole-v1", "--preset", NASTY]
    yield ["train", "CartPole-v1", "--algo", NASTY]
    yield ["train", "CartPole-v1", "--env-kwargs", json.dumps({NASTY: NASTY})]
    yield ["train", "CartPole-v1", "--wrappers", NASTY]
    yield ["doctor", NASTY]


def test_no_command_shows_a_run_raw(run, capfd):
    for words in commands(run):
        main(words)
        out, err = capfd.readouterr()
        assert out or err
        clean(out)
        clean(err)


@pytest.mark.parametrize("name", ["manifest.json", "status.json", "metrics.jsonl", "config.toml", "checkpoints/LATEST"])
def test_what_is_wrong_with_a_file_is_not_shown_raw(run, capfd, name):
    (run.path / name).write_text(f'{{"{NASTY}": 5, "env": "{NASTY}"')
    for words in list(commands(run))[:7]:
        main(words)
    clean("".join(capfd.readouterr()))


def test_code_that_a_file_names_is_not_shown_raw(run, capfd):
    config = run.path / "config.toml"
    config.write_text(config.read_text() + f"\ncallbacks_ = {json.dumps(NASTY)}\n")
    main(["eval", str(run.path)])
    text = config.read_text().replace('eval_env = "none"', f"eval_env = {json.dumps('x.py:' + NASTY)}")
    config.write_text(text.replace(f"\ncallbacks_ = {json.dumps(NASTY)}\n", ""))
    assert main(["eval", str(run.path)]) == 2
    assert r"eval_env = x.py:\x1b[2J" in clean("".join(capfd.readouterr()))


@pytest.mark.parametrize("fault", ["made", "reset", "step"])
@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_an_env_are_not_shown_raw(fault, workers, capfd):
    Path("mine.py").write_text(ENV, encoding="utf-8")
    changes = {"env": "mine.py:Env", "eval_every": None, "env_kwargs": json.dumps({"fault": fault}), "workers": workers}
    assert main(command("run", **{**TINY, **changes})) == 1
    out, err = capfd.readouterr()
    assert r"\x1b[2J" in clean(out) + clean(err)
    for file in Path().glob("run/**/*.txt"):
        clean(file.read_text())
    assert main(["doctor", "mine.py:Env", "--env-kwargs", json.dumps({"fault": fault}), "--episodes=1"]) in (0, 1)
    clean("".join(capfd.readouterr()))


def test_the_live_table_shows_no_warning_raw(tmp_path):
    with open(tmp_path / "screen", "w+", encoding="utf-8") as screen:
        LiveProgress(screen).on_warning(None, f"it is off: {NASTY}")
        screen.seek(0)
        assert r"\x1b[2J" in clean(screen.read())


def test_names_that_are_not_utf8_work_or_are_refused(whole, capfdbinary):
    """As Python hands them over from the command line; the output is UTF-8 to the last byte."""

    def cli(*words):
        code = main([os.fsdecode(word) for word in words])
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    name = b"runs/caf\xe9"
    shutil.copytree(whole.path, os.fsdecode(name))
    code, out, _ = cli("list", "runs")
    assert code == 0
    assert r"runs/caf\xe9" in out
    assert json.loads(cli("list", "runs", "--json")[1])[0]["run"] == os.fsdecode(name)
    code, out, _ = cli("eval", name, "--episodes=1")
    assert code == 0
    assert r"runs/caf\xe9/checkpoints/1600" in out
    code, out, _ = cli("resume", "latest", "--total-steps=1632")
    assert code == 0
    assert r"next:    surefoot video $'runs/caf\xe9' --untrained" in out
    assert cli(*command(eval_every=None), *SHORT, b"--run-dir=\xff")[0] == 0
    assert json.loads((Path("\udcff") / "result.json").read_text())["run_dir"] == "\udcff"
    assert cli("train", b"\xff\xfe")[0] == 2
    assert cli("eval", b"\xff\xfe")[0] == 2
    code, _, err = cli(*command(eval_every=None), b"--init-from", name, *SHORT)
    assert code == 2
    assert "init_from: a name that is not UTF-8 cannot be written into config.toml" in err
