import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import surefoot
from surefoot.envs.config import EnvConfig
from surefoot.envs.gym_envs import GymEnvs
from surefoot.envs.make import make_env
from surefoot.envs.seeds import episode_seed
from surefoot.envs.workers import WorkerEnvs, auto
from surefoot.envs.workers.auto import choose_workers
from surefoot.envs.workers.messages import decode, encode
from surefoot.errors import EnvError, NonFiniteError, UsageError
from surefoot.limits import usable_cores
from surefoot.spaces.as_json import space_to_json
from surefoot.types import Restorable, Step, SteppedInParts

FILE = str(Path(__file__).parents[1] / "worker_envs.py")


def own(name, **kwargs):
    return EnvConfig(env=f"{FILE}:{name}", env_kwargs=kwargs)


def fatal(how, **kwargs):
    return own("Fatal", how=how, **kwargs)


def children():
    """Live processes (no zombies) that this one started: tests of one process run one after the other."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8")
    return [int(pid) for pid in text.split() if alive(int(pid))]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids, within=30.0):
    until = time.monotonic() + within
    while time.monotonic() < until and any(map(alive, pids)):
        time.sleep(0.01)
    return not any(map(alive, pids))


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = set(children())
    yield
    assert not set(children()) - before


@pytest.fixture
def start():
    made = []

    def make(config, num_envs=3, workers=2, seed=5, **kwargs):
        made.append(WorkerEnvs(config, num_envs, seed, workers, **kwargs))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


def pair(start, config, num_envs=3, workers=2):
    return GymEnvs(lambda: make_env(config), num_envs, 5), start(config, num_envs, workers)


def same(a, b):
    """Equal to the last bit, types included."""
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    else:
        assert a == b


def same_step(a, b):
    for field in fields(Step):
        same(getattr(a, field.name), getattr(b, field.name))


def draw(space, num_envs):
    actions = [space.sample() for _ in range(num_envs)]
    return actions if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.array(actions, space.dtype)


def zeros(envs):
    return np.zeros(envs.num_envs, np.int64)


def play(envs, steps):
    envs.reset()
    return [envs.step(zeros(envs)) for _ in range(steps)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (EnvConfig(env="CartPole-v1"), 400),
        (EnvConfig(env="Pendulum-v1", max_episode_steps=70), 300),
        (EnvConfig(env="CartPole-v1", wrappers=('TimeLimit{"max_episode_steps":9}',)), 100),
        (own("Nested"), 100),
        (own("Masked"), 100),
        (own("Lives"), 60),
        (own("Image"), 60),
    ],
    ids=["CartPole", "Pendulum", "wrapped", "Nested", "Masked", "Lives", "Image"],
)
def test_every_byte_is_that_of_the_envs_in_one_process(start, config, steps):
    one, many = pair(start, config, num_envs=5)
    for name in ("observation_space", "action_space"):
        assert space_to_json(getattr(one, name)) == space_to_json(getattr(many, name))
    assert (one.layout.shape, one.layout.dtype, one.layout.mask) == (
        many.layout.shape,
        many.layout.dtype,
        many.layout.mask,
    )
    assert one.time_limit == many.time_limit
    same(one.reset(), many.reset())
    one.action_space.seed(0)
    rng, ended = np.random.default_rng(0), 0
    for t in range(steps):
        active = rng.random(5) < 0.7 if t % 3 == 0 else None
        action = draw(one.action_space, 5)
        step = one.step(action, active)
        same_step(step, many.step(action, active))
        same(one.observations, many.observations)
        ended += len(step.final_obs)
    assert ended > 5
    same(one.state_dict(), many.state_dict())
    same(one.reset(), many.reset())
    one.close()


@pytest.mark.parametrize("workers", [1, 9])
def test_the_number_of_workers_does_not_matter(start, workers):
    one, many = pair(start, own("Noise"), num_envs=3, workers=workers)
    assert len(many.supervisor.workers) == min(workers, 3)
    same(one.reset(), many.reset())
    for _ in range(20):
        same_step(one.step(zeros(one)), many.step(zeros(many)))
    one.close()


@pytest.mark.parametrize("name", ["Nested", "Lives", "Image"])
def test_every_part_goes_at_its_own_pace(start, name):
    one, many = pair(start, own(name), num_envs=5)
    assert isinstance(many, SteppedInParts)
    same(one.reset(), many.reset())
    one.action_space.seed(0)
    actions = [draw(one.action_space, 5) for _ in range(30)]
    steps, times = [one.step(action) for action in actions], [0, 0]
    for part, step_at in enumerate(many.parts):
        many.send(part, actions[0][step_at])
    while many.supervisor.workers[0].awaited or many.supervisor.workers[1].awaited:
        for part in many.answered():
            step_at, whole = many.parts[part], steps[times[part]]
            step = many.take(part)
            for field in ("obs", "reward", "terminated", "truncated", "valid"):
                same(getattr(step, field), getattr(whole, field)[step_at])
            for field in ("final_obs", "final_info"):
                mine = {i + step_at.start: x for i, x in getattr(step, field).items()}
                same(mine, {i: x for i, x in getattr(whole, field).items() if step_at.start <= i < step_at.stop})
            lost = np.zeros(5, np.bool_) if whole.life_lost is None else whole.life_lost
            assert np.array_equal(
                lost[step_at], np.zeros_like(step.valid) if step.life_lost is None else step.life_lost
            )
            times[part] += 1
            if times[part] < len(actions):
                many.send(part, actions[times[part]][step_at])
    assert times == [30, 30]
    assert many.answered() == []  # nobody is waited for
    same(one.state_dict(), many.state_dict())
    one.close()


@pytest.mark.slow
def test_a_part_does_not_wait_for_a_slower_one(start, tmp_path):
    """The worker of env 1 hangs; that of env 0 is asked again and again until the other one's time is up."""
    config = fatal("hang", at=3, mark=str(tmp_path / "mark"))
    envs = start(config, num_envs=2, workers=2, timeout=0.5)
    envs.reset()
    times, action = [0, 0], np.zeros(1, np.int64)
    for part in (0, 1):
        envs.send(part, action)

    def go_on():
        while sum(times) < 1_000_000:
            for part in envs.answered():
                envs.take(part)
                times[part] += 1
                envs.send(part, action)

    with pytest.raises(EnvError, match=r"did not answer within 0.5 s \(--env-timeout\) in step of env \d"):
        go_on()
    assert min(times) == 2  # the first to come to its third step hangs
    assert max(times) > 20


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_lost_part_is_cut_while_the_others_go_on(start, how, tmp_path):
    notices = []
    config = fatal(how, at=3, mark=str(tmp_path / "mark"))
    envs = start(config, num_envs=4, workers=2, timeout=0.5, restarts=1, notice=notices.append)
    envs.reset()
    times, cut, last, action = [0, 0], [], {}, np.zeros(2, np.int64)
    for part in (0, 1):
        envs.send(part, action)
    while min(times) < 8:
        for part in envs.answered():
            step = envs.take(part)
            if not step.valid.any():
                cut.append((part, times[part]))
                assert step.truncated.all()
                assert step.reward.tolist() == [0.0, 0.0]
                assert np.array_equal(np.stack([step.final_obs[i] for i in (0, 1)]), last[part])
            last[part] = step.obs
            times[part] += 1
            envs.send(part, action)
    assert len(cut) == len(notices) == 1
    assert cut[0][1] == 2


def test_what_fits_no_row_still_arrives(start):
    """A final observation of another type than its space says; an info that is no plain data."""
    one, many = pair(start, own("Doubles"))
    one.reset(), many.reset()
    for _ in range(12):
        a, b = one.step(zeros(one)), many.step(zeros(many))
        same(a.final_obs, b.final_obs)
        assert {i: {"self": repr(info["self"])[:6]} for i, info in a.final_info.items()} == {
            i: {"self": info["self"][:6]} for i, info in b.final_info.items()
        }
    one.close()


def test_messages_keep_plain_data_to_the_last_bit():
    data = {"a": (1, [2.5, None, True]), 3: np.arange(6, dtype=np.int16).reshape(2, 3), (1, 2): np.float32(0.1)}
    data |= {"nan": np.array(np.nan), "inf": float("inf"), "text": "\udc80é", "empty": np.zeros((0, 3)), "big": 2**80}
    same(decode(encode(data)), data)
    assert decode(encode({"x": object})) == {"x": "<class 'object'>"}
    loop = []
    loop.append(loop)
    encode(loop)


@pytest.mark.parametrize("name", ["Nested", "Masked"])
def test_a_state_from_either_is_restored_by_either(start, name):
    one, many = pair(start, own(name))
    one.reset(), many.reset()
    one.action_space.seed(3)
    for _ in range(17):
        action = draw(one.action_space, 3)
        last = one.step(action).obs
        many.step(action)
    state = many.state_dict()
    same(state, one.state_dict())
    fresh, fresh_many = pair(start, own(name), workers=1)
    last[1] += 1.0  # as if env 1 had come back otherwise
    assert isinstance(fresh_many, Restorable)
    # Float64 parts of an action are remembered as float32, so a replayed Nested may differ: but alike in both.
    assert (lost := fresh.load_state_dict(state, last)) == fresh_many.load_state_dict(state, last)
    assert 1 in lost
    same(fresh.observations, fresh_many.observations)
    for _ in range(10):
        action = draw(one.action_space, 3)
        same_step(fresh.step(action), fresh_many.step(action))
    one.close(), fresh.close()


def test_workers_import_no_torch_and_what_they_are_stays_with_them(start):
    assert "torch" in sys.modules
    envs = start(fatal("none"))
    assert envs.reset().tolist() == [[0.0, 0.0]] * 3
    pids = {envs.step(zeros(envs)) and w.process.pid for w in envs.supervisor.workers}
    assert len(pids) == 2
    assert set(children()) >= pids
    envs.close()
    envs.close()
    assert not any(map(alive, pids))
    with pytest.raises(UsageError, match="closed"):
        envs.reset()


def test_a_function_or_an_object_cannot_be_handed_over():
    with pytest.raises(UsageError, match=r"workers need an env by id or file\.py:Factory"):
        WorkerEnvs(EnvConfig(), 2, 0, 2, factory=lambda: None)
    with pytest.raises(UsageError, match=r"plain data.*object"):
        WorkerEnvs(EnvConfig(env="CartPole-v1", env_kwargs={"x": object()}), 2, 0, 2)


def test_errors_of_making_are_those_of_one_process():
    with pytest.raises(UsageError, match=r"unknown environment 'CartPole-v9'; did you mean 'CartPole-v1'\?"):
        WorkerEnvs(EnvConfig(env="CartPole-v9"), 2, 0, 2)
    with pytest.raises(EnvError, match=r"factory .*Fatal raised ZeroDivisionError: could not be made") as caught:
        WorkerEnvs(fatal("init"), 2, 0, 1)
    assert "worker_envs.py" in caught.value.__notes__[-1]
    gym.register("OnlyHere-v0", entry_point=lambda: None)
    try:
        with pytest.raises(UsageError, match="registered in this process only"):
            WorkerEnvs(EnvConfig(env="OnlyHere-v0"), 1, 0, 1)
    finally:
        del gym.registry["OnlyHere-v0"]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(
    ("how", "error"), [("raise", "ZeroDivisionError: the simulator broke"), ("sysexit", "SystemExit: 5")]
)
def test_an_env_that_raises_is_named_and_its_traceback_shown(start, how, error, at):
    one, many = pair(start, fatal(how, at=at), workers=1 + at // 2)
    texts = []
    for envs in (one, many):
        with pytest.raises(EnvError) as caught:
            play(envs, 3)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    seed = episode_seed(5, 0, 0)
    what = "step" if at else "reset"
    assert texts[1] == (f"{what} of Fatal (env 0, seed {seed}, episode 0, step {at}) raised {error}")
    assert "act_up" in caught.value.__notes__[-1]
    assert caught.value.__notes__[-1].endswith(error)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("how", "words", "trace"),
    [
        ("exit", "ended itself with exit code 7", ""),
        ("kill", r"was killed by SIGKILL \(did the machine run out of memory\?\)", ""),
        ("segv", "was killed by SIGSEGV", "act_up"),
        ("segv_signal", "was killed by SIGSEGV", "act_up"),
        ("hang", r"did not answer within 0.5 s \(--env-timeout\)", "act_up"),
        ("stop", r"did not answer within 0.5 s", ""),
        ("fork_and_die", "ended itself with exit code 9", ""),
    ],
)
def test_a_worker_that_is_lost_is_named_with_its_envs(start, how, words, trace, tmp_path):
    """Only the env that comes first to its step 2 does it."""
    envs = start(fatal(how, mark=str(tmp_path / "mark")), num_envs=3, workers=1, timeout=0.5)
    envs.reset()
    envs.step(zeros(envs))
    pids = [worker.process.pid for worker in envs.supervisor.workers]
    began = time.monotonic()
    with pytest.raises(EnvError, match=rf"env worker 0 of .*Fatal {words}.* in step of env 0; it had ") as caught:
        envs.step(zeros(envs))
    assert time.monotonic() - began < 30  # it would hang for a quarter of an hour
    for index, step in ((0, 2), (1, 1), (2, 1)):
        assert f"env {index} (seed {episode_seed(5, index, 0)}, episode 0, step {step})" in str(caught.value)
    assert trace in "".join(getattr(caught.value, "__notes__", ()))
    assert gone(pids)
    with pytest.raises(EnvError, match=words):  # and it stays so
        envs.step(zeros(envs))


def test_a_worker_lost_in_reset_and_one_lost_at_the_start(start):
    envs = start(fatal("exit", at=0), num_envs=2)
    with pytest.raises(EnvError, match=r"exit code 7 in reset of env 0; it had env 0 \(seed \d+, episode 0, step 0\)"):
        envs.reset()
    missing = EnvConfig(env=f"{FILE}:Fatal", wrappers=("os:_exit",))  # called with the env: TypeError
    with pytest.raises(UsageError, match="wrappers"):
        WorkerEnvs(missing, 1, 0, 1)


@pytest.mark.slow
def test_slow_progress_is_no_hang(start):
    """Six steps of 0.2 s are longer than the deadline, but each of them is not."""
    envs = start(own("Slow", how=0.2), num_envs=6, workers=1, timeout=0.8)
    envs.reset()
    envs.step(zeros(envs))


def test_bad_numbers_are_found_in_the_worker(start):
    config = EnvConfig(env=f"{Path(FILE).parent / 'helpers.py'}:BadEnv", env_kwargs={"fault": "nan_obs"})
    one, many = pair(start, config)
    texts = []
    for envs in (one, many):
        with pytest.raises(NonFiniteError) as caught:
            play(envs, 3)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    many.close()


def test_actions_are_never_broadcast(start):
    envs = start(own("Noise"))
    envs.reset()
    with pytest.raises(UsageError, match=r"shape \(1,\); the envs take \(3,\)"):
        envs.step(np.zeros(1, np.int64))
    with pytest.raises(TypeError):
        envs.step(np.full(3, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "hang"])
def test_a_restart_cuts_the_open_episodes_and_goes_on(start, how, tmp_path):
    notices = []
    config = fatal(how, at=3, mark=str(tmp_path / "mark"))
    envs = start(config, num_envs=4, workers=2, timeout=0.5, restarts=1, notice=notices.append)
    envs.reset()
    envs.step(zeros(envs))
    last = envs.step(zeros(envs))
    step = envs.step(zeros(envs))
    (cut,) = [w for w in envs.supervisor.workers if w.envs.start in step.final_obs]  # one or the other came first
    lost = [index in cut.envs for index in range(4)]
    assert step.truncated.tolist() == lost
    assert step.valid.tolist() == [not x for x in lost]
    assert not step.terminated.any()
    assert step.reward.tolist() == [0.0 if x else 1.0 for x in lost]
    assert step.obs[:, 0].tolist() == [0.0 if x else 3.0 for x in lost]
    assert list(step.final_obs) == list(step.final_info) == list(cut.envs)
    for index in cut.envs:
        same(step.final_obs[index], last.obs[index])
    assert len(notices) == 1
    assert notices[0].endswith("; it is started again (1 of 1)")
    assert envs.state_dict()["episode"] == [int(x) for x in lost]  # a new episode, a new seed
    for _ in range(3):
        step = envs.step(zeros(envs))
        assert step.valid.all()
    assert step.terminated.tolist() == [not x for x in lost]
    assert envs.supervisor.restarted == 1


def test_the_budget_of_restarts_holds(start):
    envs = start(fatal("exit", at=2, always=True), num_envs=2, workers=1, restarts=2)
    assert [step.truncated.tolist() for step in play(envs, 5)] == [[False] * 2, [True] * 2] * 2 + [[False] * 2]
    with pytest.raises(EnvError, match="exit code 7") as caught:
        envs.step(zeros(envs))
    assert caught.value.__notes__ == ["2 restarts (--restart-workers) were used up."]


def test_a_worker_that_dies_while_starting_again_spends_the_budget(start):
    envs = start(fatal("exit", at=0, always=True), num_envs=1, workers=1, restarts=2)
    with pytest.raises(EnvError, match="exit code 7"):
        envs.reset()
    assert envs.supervisor.restarted == 2


def test_an_idle_env_keeps_its_fresh_episode_through_a_restart(start, tmp_path):
    config = fatal("exit", at=2, episode=1, mark=str(tmp_path / "mark"), length=3)
    envs = start(config, num_envs=2, workers=1, restarts=1)
    envs.reset()
    for _ in range(3):
        step = envs.step(zeros(envs))
    assert step.terminated.all()
    only = np.array([True, False])
    envs.step(zeros(envs), only)
    step = envs.step(zeros(envs), only)
    assert step.truncated.tolist() == [True, False]
    assert list(step.final_obs) == [0]
    assert not step.valid.any()
    assert envs.state_dict()["episode"] == [2, 1]


@pytest.mark.slow
def test_a_worker_lost_between_steps_is_noticed_when_it_is_asked(start):
    envs = start(own("Noise"), restarts=2)
    envs.reset()
    last = envs.step(zeros(envs)).obs
    os.kill(envs.supervisor.workers[1].process.pid, signal.SIGKILL)
    state = envs.state_dict()  # env 0 is saved; those of worker 1 cannot come back, and the state says so
    assert state["actions"][0] is not None
    assert state["actions"][1:] == [None, None]
    step = envs.step(zeros(envs))
    assert step.truncated[1:].all()
    same(step.final_obs[2], last[2])
    same(start(own("Noise")).load_state_dict(state, last), [1, 2])
    os.kill(envs.supervisor.workers[0].process.pid, signal.SIGSEGV)
    assert 0 in envs.load_state_dict(state, last)
    assert envs.supervisor.restarted == 2


def test_interrupts_are_for_the_parent_to_decide_on(start, capfd):
    envs = start(fatal("signals", at=1))
    envs.reset()
    for worker in envs.supervisor.workers:
        os.kill(worker.process.pid, signal.SIGINT)
    for _ in range(4):
        envs.step(zeros(envs))
    envs.close()
    assert capfd.readouterr().err == ""


def test_a_reply_that_somebody_did_not_wait_for_is_not_taken_for_the_next(start, monkeypatch):
    one, many = pair(start, own("Noise"))
    same(one.reset(), many.reset())
    one.step(zeros(one))
    with monkeypatch.context() as patch:
        patch.setattr(many.supervisor, "_reply", lambda worker: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            many.step(zeros(many))
    for _ in range(10):
        same_step(one.step(zeros(one)), many.step(zeros(many)))
    one.close()


@pytest.mark.slow
def test_errors_of_closing_come_when_all_are_closed_and_who_will_not_close_is_killed(monkeypatch):
    envs = WorkerEnvs(fatal("close"), 2, 0, 2)
    pids = [w.process.pid for w in envs.supervisor.workers]
    with pytest.raises(EnvError, match=r"close of Fatal .* could not be closed"):
        envs.close()
    assert not any(map(alive, pids))
    monkeypatch.setattr("surefoot.envs.workers.supervisor.CLOSE_TIMEOUT", 0.5)
    envs = WorkerEnvs(fatal("hang_close"), 2, 0, 2)
    began = time.monotonic()
    envs.close()
    assert 0.4 < time.monotonic() - began < 30  # it would hang for a quarter of an hour


@pytest.mark.slow
def test_no_file_stays_open():
    """Neither after a life of steps and restarts nor after an error or a failed start."""

    def live(how):
        envs = WorkerEnvs(fatal(how), 1, 0, 1, restarts=1)
        try:
            play(envs, 8)
        finally:
            envs.close()

    counts = []
    for how in ("exit", "raise", "none"):
        with suppress(EnvError):
            live(how)
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1


def test_workers_started_by_a_thread_outlive_it(start):
    made = []
    thread = threading.Thread(target=lambda: made.append(start(own("Noise"))))
    thread.start()
    thread.join()
    time.sleep(0.1)
    (envs,) = made
    envs.reset()
    envs.step(zeros(envs))


ORPHANS = """
import sys, threading, time
import numpy as np
from surefoot.envs.config import EnvConfig
from surefoot.envs.workers import WorkerEnvs
def main():
    envs = WorkerEnvs(EnvConfig(env=sys.argv[1], env_kwargs={"how": sys.argv[2], "at": 1}), 2, 0, 1)
    envs.reset()
    print(*[w.process.pid for w in envs.supervisor.workers], flush=True)
    envs.step(np.zeros(2, np.int64))
    time.sleep(100)
threading.Thread(target=main).start() if sys.argv[3] == "thread" else main()
"""


@pytest.mark.parametrize(("how", "where"), [("hang", "main"), ("none", "thread")])
def test_workers_die_with_a_parent_that_is_killed(how, where):
    """No `if __name__ == "__main__"` is needed, either: a worker does not run the script again."""
    command = [sys.executable, "-c", ORPHANS, f"{FILE}:Fatal", how, where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 1
        assert alive(pids[0])
        time.sleep(0.2)
        parent.kill()
    assert gone(pids)


def test_a_parent_that_ends_without_closing_leaves_nothing_and_says_nothing():
    script = ORPHANS.replace("time.sleep(100)", "pass")
    command = [sys.executable, "-W", "error", "-c", script, f"{FILE}:Fatal", "none", "main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone([int(pid) for pid in done.stdout.split()])


@pytest.mark.slow
def test_a_worker_has_the_interpreter_flags_of_its_parent():
    script = ORPHANS.replace("envs.step(np.zeros(2, np.int64))", "print(envs.observations)")
    script = script.replace("time.sleep(100)", "pass")
    command = [sys.executable, "-O", "-W", "error", "-c", script, f"{FILE}:Fatal", "flags", "main"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("[[1. 1.]\n [1. 1.]]\n")


class TestAuto:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        monkeypatch.setattr(auto, "SECONDS", 0.3)
        monkeypatch.setattr(auto, "usable_cores", lambda: 2)

    @pytest.mark.slow
    def test_the_faster_one_is_kept_and_both_figures_are_said(self):
        """Envs that sleep are faster in two processes, however busy the cores are."""
        number, why = choose_workers(own("Slow", how=0.01), 4)
        assert number == 2
        apart, together = (float(figure.replace(",", "")) for figure in re.findall(r"\d[\d,]*", why))
        assert why == f"{apart:,.0f} env steps/s with them, {together:,.0f} in one process"
        assert auto.GAIN * together < apart
        assert together <= 100
        number, why = choose_workers(EnvConfig(env="CartPole-v1"), 4)  # every step is exchanged
        assert number == 0
        assert re.fullmatch(r"[\d,]+ env steps/s in one process, [\d,]+ with 2 workers", why)

    @pytest.mark.slow
    def test_workers_that_will_act_on_their_own_are_measured_on_their_own(self):
        """A step of a millisecond, asleep: the exchange of every step would show."""
        number, why = choose_workers(own("Slow"), 4, auto.fit_to_act)
        assert number == 2
        assert re.fullmatch(r"[\d,]+ env steps/s with them, [\d,]+ in one process", why)
        for name, fits in (("Noise", True), ("Masked", True), ("Nested", False), ("Image", False)):
            envs = GymEnvs(lambda name=name: make_env(own(name)), 1, 0)
            assert auto.fit_to_act(envs) is fits, name
            envs.close()

    @pytest.mark.parametrize("name", ["Nested", "Masked", "Image"])
    def test_every_space_can_be_played_at_random(self, name):
        assert "env steps/s" in choose_workers(own(name), 3)[1]

    def test_nothing_is_started_where_there_is_nothing_to_choose(self, monkeypatch):
        monkeypatch.delattr(auto, "WorkerEnvs")
        assert choose_workers(own("Slow"), 1) == (0, "one env")
        timed = EnvConfig(env="CartPole-v1", workers="auto", env_timeout=5.0)
        assert choose_workers(timed, 1) == (1, "env_timeout needs one; one env")
        number, why = choose_workers(EnvConfig(env="CartPole-v1", workers="auto", restart_workers=1), 4)
        assert (number, why) == (2, "as many as there are cores or envs, for restart_workers needs them")
        monkeypatch.setattr(auto, "usable_cores", lambda: 1)
        assert choose_workers(own("Slow"), 4) == (0, "one core")

    @pytest.mark.slow
    def test_what_breaks_goes_into_workers_and_what_cannot_go_there_stays(self):
        assert choose_workers(fatal("segv"), 2)[0] == 2
        assert choose_workers(fatal("raise"), 2)[0] == 2
        gym.register("OnlyHere-v1", entry_point=lambda: None)
        try:
            number, why = choose_workers(EnvConfig(env="OnlyHere-v1"), 2)
        finally:
            del gym.registry["OnlyHere-v1"]
        assert number == 0
        assert why.startswith("workers cannot be used: 'OnlyHere-v1' was registered in this process only")

    @pytest.mark.slow
    def test_the_choice_is_that_of_the_run(self):
        quick = {"preset": "none", "total_steps": 64, "rollout_length": 8, "progress": False, "eval_episodes": 0}
        quick |= {"num_minibatches": 1, "workers": "auto"}
        by_function = surefoot.train(lambda: gym.make("CartPole-v1"), **quick)
        assert by_function.config["workers"] == 0
        assert "another process cannot be given a function" in (by_function.path / "log.txt").read_text()
        vector = surefoot.train(gym.make_vec("CartPole-v1", 4), **quick)
        assert vector.config["workers"] == 0
        with pytest.raises(UsageError, match="workers cannot step a ready-made vector env"):
            surefoot.train(gym.make_vec("CartPole-v1", 4), **quick | {"workers": 2})
        with pytest.raises(UsageError, match="restart_workers needs workers, but a vector env steps itself"):
            surefoot.train(gym.make_vec("CartPole-v1", 4), **quick, restart_workers=1)
        Path("run.toml").write_text('workers = "auto"\n', encoding="utf-8")
        found = surefoot.train("CartPole-v1", config="run.toml", **{k: v for k, v in quick.items() if k != "workers"})
        assert found.config["workers"] == 0
        # Somebody asks for another measurement before going on.
        config = found.path / "config.toml"
        config.write_text(config.read_text().replace("\nworkers = 0\n", '\nworkers = "auto"\n'))
        surefoot.resume(found, total_steps=128, progress=False)
        assert (found.path / "log.txt").read_text().count("workers 0 (compiled code steps the envs)") == 2


def test_the_cores_are_those_that_may_be_used():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
