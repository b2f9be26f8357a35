"""Recordings, read back with ffmpeg: every frame is there, as it was drawn; a failure leaves nothing behind."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
import torch
from gymnasium import spaces

from surefoot.envs.seeds import derive_seed
from surefoot.errors import EnvError, SurefootError, UsageError
from surefoot.training.evaluation import evaluate, headless
from surefoot.training.evaluation.agent import Agent
from surefoot.training.evaluation.evaluate import evaluate_agent
from surefoot.training.evaluation.headless import go_headless
from surefoot.training.evaluation.video import record
from tests.building import make_policy
from tests.helpers import NoiseEnv, ScriptedEnv

FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()
BOX2 = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class PaintedEnv(ScriptedEnv):
    """A gradient whose brightness says which step it is; `size` is (height, width)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(self, size=(48, 64), **kwargs):
        super().__init__(**({"render_mode": "rgb_array"} | kwargs))
        self.size, self.closed = size, False

    def render(self):
        rows, columns = np.indices(self.size)
        return np.stack([20 * self.time + rows, 20 * self.time + columns, rows + columns], -1).astype(np.uint8)

    def close(self):
        self.closed = True


class Untimely(PaintedEnv, NoiseEnv):
    """Ends after as many steps as the episode's seed says."""


class DrawnEnv(PaintedEnv):
    """`draw(env)` is what render returns."""

    def __init__(self, draw, **kwargs):
        super().__init__(**kwargs)
        self.draw = draw

    def render(self):
        return self.draw(self)


def make_agent(seed=0, **kwargs):
    return Agent(make_policy(spaces.Discrete(2), observation_space=BOX2, seed=seed, **kwargs))


def cartpole():
    return gym.make("CartPole-v1", render_mode="rgb_array")


def cartpole_agent(seed):
    return Agent(make_policy(spaces.Discrete(2), seed=seed))


def decode(recording):
    """Frames of the file, [n, height, width, 3]."""
    command = [FFMPEG, "-loglevel", "error", "-i", f"file:{recording.path}", "-fps_mode", "passthrough"]
    raw = subprocess.run([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, recording.height, recording.width, 3)


def describe(path):
    return subprocess.run([FFMPEG, "-hide_banner", "-i", path], capture_output=True, text=True).stderr


def distance(one, other):
    return np.abs(np.asarray(one, np.int16) - np.asarray(other, np.int16)).mean()


def ffmpegs(parent):
    """Processes of ffmpeg that `parent` started and that have not been waited for."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().rpartition(")")
        except OSError:  # ended meanwhile
            continue
        if "ffmpeg" in name and int(rest.split()[1]) == parent:
            found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(tmp_path):
    yield
    assert ffmpegs(os.getpid()) == []
    assert list(tmp_path.rglob(".tmp-*")) == []


@pytest.fixture
def agent():
    return make_agent()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "video.mp4"


class TestOneAgent:
    def test_every_frame_of_cartpole_is_there(self, path):
        agent = cartpole_agent(2)
        found = record({"agent": agent}, cartpole, path, episodes=2, seed=3)
        assert tuple(found.returns["agent"]) == evaluate_agent(agent, cartpole, episodes=2, seed=3).returns
        assert found.frames == sum(found.returns["agent"]) + 2  # CartPole pays 1 a step; each reset is a frame too
        assert (found.path, found.width, found.height, found.fps) == (path, 600, 400, 50.0)
        frames = decode(found)
        assert len(frames) == found.frames
        for episode, index in ((0, 0), (1, int(found.returns["agent"][0]) + 1)):
            env = cartpole()
            env.reset(seed=derive_seed(3, "eval", episode))
            assert distance(frames[index], env.render()) < 0.5
            env.close()

    def test_returns_are_those_of_earlier_versions(self, agent, path):
        found = record({"agent": agent}, Untimely, path, episodes=3, seed=5)
        assert found.returns["agent"] == pytest.approx([-0.09017271121506631, 5.213865992829298, 3.726094251594053])
        assert found.frames == 18

    def test_every_player_opens_it(self, agent, path):
        record({"agent": agent}, PaintedEnv, path)
        assert "Video: h264" in describe(path)
        assert "yuv420p(tv, bt709" in describe(path)
        assert "64x48" in describe(path)
        assert "20 fps" in describe(path)
        data = path.read_bytes()
        assert 0 < data.index(b"moov") < data.index(b"mdat")  # plays while it is still loading

    def test_colours_come_back(self, agent, path):
        found = record({"agent": agent}, PaintedEnv, path)
        env = PaintedEnv()
        for step, frame in enumerate(decode(found)):
            env.time = step
            assert distance(frame, env.render()) < 4

    @pytest.mark.parametrize(("size", "even"), [((47, 63), (48, 64)), ((48, 63), (48, 64)), ((1, 1), (2, 2))])
    def test_odd_sizes_get_a_row_or_column_more(self, agent, path, size, even):
        def draw(env):
            return np.full((*size, 3), 200, np.uint8)

        found = record({"agent": agent}, lambda: DrawnEnv(draw), path)
        assert (found.height, found.width) == even
        frames = decode(found)
        for part in (frames, frames[:, -1], frames[:, :, -1]):
            assert distance(part, 200) < 2

    @pytest.mark.parametrize(
        "name", ["a b.mp4", "Läufe ✓ 観.mp4", 'it\'s "%03d" a:b.mp4', "-y.MP4", "x" * 251 + ".mp4"]
    )
    def test_any_name(self, agent, tmp_path, name):
        folder = tmp_path / "with a space: ü"
        folder.mkdir()
        assert decode(record({"agent": agent}, PaintedEnv, folder / name)).shape == (4, 48, 64, 3)
        assert [file.name for file in folder.iterdir()] == [name]

    def test_a_relative_path_and_a_file_that_was_there(self, agent, tmp_path):
        (tmp_path / "video.mp4").write_text("old")
        assert len(decode(record({"agent": agent}, PaintedEnv, Path("video.mp4")))) == 4

    @pytest.mark.parametrize(
        "draw",
        [
            lambda env: np.full((48, 64), 90, np.uint8),
            lambda env: np.asfortranarray(np.full((48, 64, 3), 90, np.uint8)),
            lambda env: np.full((64, 96, 3), 90, np.uint8)[::-1].swapaxes(0, 1)[:48],
        ],
        ids=["greyscale", "column by column", "a view"],
    )
    def test_frames_may_be_laid_out_as_they_like(self, agent, path, draw):
        assert distance(decode(record({"agent": agent}, lambda: DrawnEnv(draw), path)), 90) < 2

    def test_the_step_budget_ends_an_env_without_a_time_limit(self, agent, path, monkeypatch):
        def endless():
            return PaintedEnv(rewards=(1.0,) * 100)

        assert record({"agent": agent}, endless, path, max_steps=7).returns == {"agent": [7.0]}
        monkeypatch.setattr(evaluate, "NO_LIMIT", 9)
        found = record({"agent": agent}, endless, path)
        assert (found.frames, len(decode(found))) == (10, 10)

    def test_an_env_that_names_no_speed_gets_30(self, agent, path):
        class Plain(PaintedEnv):
            metadata = {"render_modes": ["rgb_array"]}

        assert record({"agent": agent}, Plain, path).fps == 30.0

    @pytest.mark.parametrize("deterministic", [True, False])
    def test_a_recording_repeats_and_leaves_the_global_generators_alone(self, path, tmp_path, deterministic):
        agent = make_agent()
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        first = record({"agent": agent}, Untimely, path, episodes=5, deterministic=deterministic)
        assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        again = record({"agent": agent}, Untimely, tmp_path / "b.mp4", episodes=5, deterministic=deterministic)
        assert again.returns == first.returns
        assert again.path.read_bytes() == path.read_bytes()


class TestSeveralAgents:
    @pytest.mark.slow
    def test_panels_play_the_same_episode_beside_each_other(self, path):
        agents = {"untrained": cartpole_agent(2), "trained": cartpole_agent(1)}
        found = record(agents, cartpole, path)
        lengths = [int(returns[0]) for returns in found.returns.values()]
        assert lengths[0] != lengths[1]  # else nothing is held
        assert found.frames == max(lengths) + 1
        assert found.width == 1200
        frames = decode(found)
        assert len(frames) == found.frames
        left, right = (frames[:, -400 - found.height % 2 :, half] for half in (slice(0, 600), slice(600, 1200)))
        assert distance(left[0], right[0]) < 0.5
        ended, going = (left, right) if lengths[0] < lengths[1] else (right, left)
        last = min(lengths)
        assert distance(ended[last], going[last]) < 20  # both on white
        for held in range(last + 1, found.frames):
            assert distance(ended[held], ended[last] // 2) < 2
        assert going[-1].mean() > 1.8 * ended[-1].mean()

    def test_the_caption_shows_label_and_return(self, path):
        agents = {"a": make_agent(0), "b": make_agent(0)}
        found = record(agents, lambda: PaintedEnv((48, 128)), path)
        strip = decode(found)[:, : found.height - 48]
        assert strip.shape[1] > 10
        left, right = strip[:, :, :128], strip[:, :, 128:]
        assert (left[0] > 150).any()  # light text on dark
        assert (left[0] < 60).mean() > 0.5
        assert distance(left[0], right[0]) > 0.2  # another label
        assert distance(left[0], left[-1]) > 0.5  # another return

    def test_every_episode_starts_for_all_panels_at_once(self, path):
        agents = {str(seed): make_agent(seed) for seed in range(3)}
        found = record(agents, Untimely, path, episodes=4, deterministic=False)
        assert all(len(returns) == 4 for returns in found.returns.values())
        assert found.width == 3 * 64
        assert len(decode(found)) == found.frames
        alone = record({"1": agents["1"]}, Untimely, path, episodes=4, deterministic=False)
        assert alone.returns["1"] == found.returns["1"]

    def test_no_caption_without_pygame(self, path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pygame.font", None)
        found = record({"a": make_agent(), "b": make_agent()}, PaintedEnv, path)
        assert (found.width, found.height) == (128, 48)


class TestFailures:
    @pytest.mark.parametrize(
        ("env", "modes"),
        [
            (lambda: gym.make("CartPole-v1"), "human, rgb_array"),
            (lambda: gym.wrappers.RenderCollection(cartpole()), "human, rgb_array, rgb_array_list"),
            (ScriptedEnv, "none"),
        ],
    )
    def test_an_env_that_does_not_draw(self, agent, path, env, modes):
        with pytest.raises(UsageError, match=rf"(CartPole-v1|ScriptedEnv) .*'rgb_array'.* render modes {modes}\)"):
            record({"agent": agent}, env, path)

    @pytest.mark.parametrize(
        ("drawn", "words"),
        [
            (None, "nothing"),
            ("ASCII art", "a str"),
            ([np.zeros((4, 4, 3), np.uint8)], r"a list \(leave out"),
            (np.zeros((4, 4, 3)), r"float64 and shape \(4, 4, 3\)"),
            (np.zeros((4, 4, 4), np.uint8), r"shape \(4, 4, 4\)"),
            (np.zeros((0, 4, 3), np.uint8), r"shape \(0, 4, 3\)"),
        ],
    )
    def test_a_render_that_returns_something_else(self, agent, path, drawn, words):
        match = rf"render of DrawnEnv \(env 0, seed \d+, episode 0, step 0\) returned .*{words}.*modes rgb_array"
        with pytest.raises(EnvError, match=match):
            record({"agent": agent}, lambda: DrawnEnv(lambda env: drawn), path)

    @pytest.mark.parametrize("method", ["render", "step", "reset"])
    def test_an_env_that_raises_is_named(self, agent, path, method):
        class Broken(PaintedEnv):
            pass

        def broken(env, *_, **__):
            if method == "step" or env.episode == 1:
                raise ZeroDivisionError("no canvas")
            return getattr(PaintedEnv, method)(env, *_, **__)

        setattr(Broken, method, broken)
        where = r"Broken \(env 0, seed \d+, episode \d, step \d\) raised ZeroDivisionError: no canvas"
        with pytest.raises(EnvError, match=rf"recording: {method} of {where}") as caught:
            record({"agent": agent}, Broken, path, episodes=3)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert not path.exists()

    def test_a_size_that_changes(self, agent, path):
        def draw(env):
            return np.zeros((48, 64 + 2 * (env.time == 2), 3), np.uint8)

        with pytest.raises(EnvError, match=r"step 2\) drew 66×48 after 64×48"):
            record({"agent": agent}, lambda: DrawnEnv(draw), path)
        sizes = iter([(48, 64), (20, 30)])
        with pytest.raises(EnvError, match=r"env 1, .* drew 30×20 after 64×48"):
            record({"a": agent, "b": agent}, lambda: PaintedEnv(next(sizes)), path)
        assert not path.exists()

    @pytest.mark.parametrize("name", ["file/video.mp4", "video.gif", "video", "folder.mp4"])
    def test_a_path_that_cannot_be(self, agent, tmp_path, name):
        (tmp_path / "file").touch()
        (tmp_path / "folder.mp4").mkdir()
        with pytest.raises(SurefootError, match=name):
            record({"agent": agent}, PaintedEnv, tmp_path / name)
        assert sorted(found.name for found in tmp_path.iterdir()) == ["file", "folder.mp4"]

    def test_nothing_to_record(self, agent, path):
        with pytest.raises(UsageError, match="0 agents"):
            record({}, PaintedEnv, path)
        with pytest.raises(UsageError, match="0 episodes"):
            record({"agent": agent}, PaintedEnv, path, episodes=0)

    def test_a_full_disk(self, agent, tmp_path):
        def noise(env):
            return env.np_random.integers(0, 256, (240, 320, 3), np.uint8)

        with small_disk(tmp_path / "disk") as disk:
            with pytest.raises(SurefootError, match=r"video.mp4 .*ffmpeg failed: .*No space left on device"):
                record({"agent": agent}, lambda: DrawnEnv(noise, rewards=(1.0,) * 100), disk / "video.mp4")
            assert list(disk.iterdir()) == []

    def test_an_ffmpeg_that_fails_at_the_end(self, agent, path, monkeypatch):
        fake_ffmpeg(path, monkeypatch, "cat > /dev/null; echo first >&2; echo '[mp4 @ 0x1] no luck' >&2; exit 7")
        with pytest.raises(SurefootError, match=r"video.mp4 .*ffmpeg failed: no luck$"):
            record({"agent": agent}, PaintedEnv, path)

    def test_an_ffmpeg_that_dies_without_a_word(self, agent, path, monkeypatch):
        fake_ffmpeg(path, monkeypatch, "kill -9 $$")
        with pytest.raises(SurefootError, match="exit status -9"):
            record({"agent": agent}, lambda: PaintedEnv((400, 600)), path)

    def test_an_ffmpeg_that_talks_more_than_a_pipe_holds(self, agent, path, monkeypatch):
        fake_ffmpeg(path, monkeypatch, "head -c 300000 /dev/zero >&2; cat > /dev/null; exit 1")
        with pytest.raises(SurefootError):
            record({"agent": agent}, lambda: PaintedEnv((400, 600)), path)

    def test_no_ffmpeg(self, agent, path, monkeypatch):
        monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
        with pytest.raises(SurefootError, match=r"did not start.*/nowhere/ffmpeg"):
            record({"agent": agent}, PaintedEnv, path)
        monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
        with pytest.raises(UsageError, match="pip install imageio-ffmpeg"):
            record({"agent": agent}, PaintedEnv, path)


class TestLeaving:
    @pytest.mark.parametrize("after", [0, 1, 5])
    def test_an_abandoned_recording_leaves_nothing(self, agent, path, after):
        path.write_text("the one before")
        envs, asked = [], []

        def make():
            envs.append(PaintedEnv())
            return envs[-1]

        def abandon():
            asked.append(len(envs[0].actions) + len(envs[1].actions))
            return len(asked) > after

        assert record({"a": agent, "b": agent}, make, path, episodes=2, abandon=abandon) is None
        assert asked == list(range(after + 1))  # before every step, and no step after
        assert all(env.closed for env in envs)
        assert path.read_text() == "the one before"
        assert [file.name for file in path.parent.iterdir()] == ["video.mp4"]

    def test_ctrl_c_is_ours_alone(self, agent, path):
        def draw(env):
            if env.time == 2:
                (encoder,) = ffmpegs(os.getpid())
                assert os.getsid(encoder) == encoder != os.getsid(0)
                raise KeyboardInterrupt
            return np.zeros((48, 64, 3), np.uint8)

        with pytest.raises(KeyboardInterrupt):
            record({"agent": agent}, lambda: DrawnEnv(draw), path)
        assert list(path.parent.iterdir()) == []

    @pytest.mark.slow
    def test_ffmpeg_does_not_outlive_us(self, tmp_path):
        """Not even a kill -9: its input ends with us."""
        program = (
            "import numpy as np; from pathlib import Path; from surefoot.training.evaluation.mp4 import Mp4\n"
            "frame = np.zeros((400, 600, 3), np.uint8); video = Mp4(Path('video.mp4'), 30.0, frame)\n"
            "while True: video.write(frame)"
        )
        ours = subprocess.Popen([sys.executable, "-c", program])
        try:
            found = []  # kept at once: while a process becomes ffmpeg it has no name for a moment
            wait_until(lambda: found.extend(ffmpegs(ours.pid)) or found)
            encoder = found[0]
            wait_until(lambda: list(tmp_path.glob(".tmp-*.mp4")))
        finally:
            ours.send_signal(signal.SIGKILL)
            ours.wait()
        wait_until(lambda: not Path(f"/proc/{encoder}").exists())
        for rest in tmp_path.glob(".tmp-*.mp4"):
            rest.unlink()

    def test_threads_take_turns(self, agent, tmp_path):
        """CartPole's close ends all of pygame, also for the envs and captions of another thread."""
        envs, together = [], []

        def make():
            envs.append(DrawnEnv(draw))
            return envs[-1]

        def draw(env):
            together.append(sum(not one.closed for one in envs))
            time.sleep(0.01)
            return np.zeros((48, 64, 3), np.uint8)

        def work(name):
            record({"agent": agent}, make, tmp_path / f"{name}.mp4")

        threads = [threading.Thread(target=work, args=(name,)) for name in "xyz"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == [1] * 12


class TestHeadless:
    NAMES = ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "MUJOCO_GL")

    @pytest.fixture(autouse=True)
    def _bare(self, monkeypatch):
        for name in (*self.NAMES, "DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.setenv(name, "")  # so that what go_headless sets is taken back
            monkeypatch.delenv(name)
        monkeypatch.setattr(headless, "find_library", lambda name: f"lib{name}.so.1")

    def chosen(self):
        go_headless()
        return tuple(os.environ.get(name) for name in self.NAMES)

    def test_without_a_display(self):
        assert self.chosen() == ("dummy", "dummy", "egl")

    @pytest.mark.parametrize("display", ["DISPLAY", "WAYLAND_DISPLAY"])
    def test_with_one_nothing_changes(self, monkeypatch, display):
        monkeypatch.setenv(display, ":0")
        assert self.chosen() == (None, None, None)

    def test_mujoco_is_not_told_to_use_an_egl_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr(headless, "find_library", lambda name: None)
        assert self.chosen() == ("dummy", "dummy", None)

    def test_the_users_choice_stays(self, monkeypatch):
        monkeypatch.setenv("MUJOCO_GL", "osmesa")
        assert self.chosen() == ("dummy", "dummy", "osmesa")


@contextmanager
def small_disk(folder):
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fake_ffmpeg(path, monkeypatch, script):
    binary = path.with_name("ffmpeg")
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(binary))


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_a_killed_recorder_left_is_removed_and_a_living_ones_is_not(agent, tmp_path):
    dead, alive, mine = (tmp_path / f".tmp-{pid}-ab.mp4" for pid in ("4194305", os.getpid(), "notes"))
    for file in (dead, alive, mine):
        file.touch()
    record({"trained": agent}, PaintedEnv, tmp_path / "a.mp4")
    assert not dead.exists()
    for file in (alive, mine):
        file.unlink()  # they were there
