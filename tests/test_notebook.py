"""How results show themselves in a notebook and at a prompt."""

from base64 import b64decode
from xml.etree import ElementTree

import pytest

import surefoot
from surefoot import notebook
from surefoot.runs import RunDirectory
from surefoot.training.evaluation.result import Evaluation
from surefoot.training.evaluation.video import Recording

QUICK = {"preset": "none", "progress": False, "num_envs": 2, "rollout_length": 16, "total_steps": 64}


def cells(html):
    """Title, and the table as a dict: well-formed, or this fails."""
    tree = ElementTree.fromstring(html)
    caption, *rows = tree
    return "".join(caption.itertext()), {row[0].text: row[1].text for row in rows}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "one"
    return surefoot.train("CartPole-v1", seed=3, num_minibatches=1, eval_episodes=2, run_dir=path, **QUICK)


def test_a_run(run):
    found = run.result["eval"]["mean_return"]
    facts = f"env CartPole-v1, algo ppo, seed 3, state done, step 64, return {found:.2f}"
    assert repr(run) == f"Run({str(run.path)!r}, {facts})"
    title, rows = cells(run._repr_html_())
    assert title == str(run.path)
    assert rows == {
        "env": "CartPole-v1",
        "algo": "ppo",
        "seed": "3",
        "state": "done",
        "step": "64",
        "return": f"{found:.2f}",
    }


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff", b'{"step": "many", "state": 3}'])
def test_a_run_that_cannot_be_read_still_has_a_repr(tmp_path, content):
    for name in ("config.toml", "status.json"):
        (tmp_path / name).write_bytes(content)
    run = surefoot.Run(RunDirectory(tmp_path))
    assert repr(run).startswith(f"Run({str(tmp_path)!r}")
    cells(run._repr_html_())


def test_what_a_stranger_wrote_stays_text(tmp_path):
    (tmp_path / "config.toml").write_text('env = "<script>alert(1)</script>\\u001b[2J"\nalgo = "ppo"')
    run = surefoot.Run(RunDirectory(tmp_path))
    assert "<script>" not in run._repr_html_()
    assert cells(run._repr_html_())[1]["env"] == "<script>alert(1)</script>\\x1b[2J"
    assert "\x1b" not in repr(run)


def test_an_evaluation():
    one = Evaluation((10.0, 30.0, 20.0), (1, 3, 2), 1, True)
    low, high = one.interval
    assert repr(one) == f"Evaluation(mean return 20.0 [{low:.1f} to {high:.1f}], 3 episodes, greedy, 1 cut)"
    title, rows = cells(one._repr_html_())
    assert title == "3 episodes, greedy, 1 cut"
    assert rows["mean return"] == f"20.0 (95 % interval {low:.1f} to {high:.1f})"
    assert rows["min to max"] == "10.0 to 30.0"
    assert "drawn actions" in repr(Evaluation((0.5,), (1,), 0, False))


def test_a_video_plays_in_the_page(tmp_path):
    file = tmp_path / "video.mp4"
    file.write_bytes(b"\x00\x01moov")
    shown = Recording(file, 3, 1200, 800, 30.0, {"trained": [1.0]})._repr_html_()
    assert 'width="640"' in shown
    assert b64decode(shown.split("base64,")[1].split('"')[0]) == b"\x00\x01moov"


def test_a_video_that_is_gone_or_too_large_is_named(tmp_path, monkeypatch):
    file = tmp_path / "<b>.mp4"
    assert "&lt;b&gt;.mp4 cannot be read: No such file" in notebook.video(file, 64)
    file.write_bytes(b"12345")
    monkeypatch.setattr(notebook, "LARGEST_INLINE", 4)
    assert "&lt;b&gt;.mp4 is too large" in notebook.video(file, 64)
