"""What an open page is told by itself, and the films that it asks for."""

import asyncio
import json
import shutil
from contextlib import aclosing

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

import surefoot
from benchmarks.many_runs import write_run
from surefoot.dashboard import live, processes, replays
from surefoot.dashboard.app import make_app
from surefoot.dashboard.films import Films
from surefoot.dashboard.live import Live
from surefoot.runs import Catalog

ENV = """
from pathlib import Path
import gymnasium as gym
Path("executed").touch()
def make(**how):
    return gym.make("CartPole-v1", **how)
"""


def told(text):
    """The data of an event."""
    name, data = text.strip().split("\n")
    assert name == "event: runs"
    return json.loads(data.removeprefix("data: "))


def test_a_page_hears_of_new_runs_new_rows_and_runs_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "EVERY", 0.01)

    async def listen():
        page = Live(Catalog(tmp_path))
        await page.look()
        async with aclosing(page.stream()) as stream:
            assert "retry" in await anext(stream)
            write_run(tmp_path / "one", rows=3, state="running")
            news = told(await anext(stream))
            assert (news["changed"][0]["id"], news["latest"]) == ("one", "one")
            assert "directory" not in news["changed"][0]
            shutil.rmtree(tmp_path / "one")
            while "one" not in told(await anext(stream))["gone"]:
                pass
            assert page._watching is not None
        assert page._watching is None  # nobody listens: nobody looks

    asyncio.run(asyncio.wait_for(listen(), 30))


def test_a_silent_server_says_that_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "ALIVE", 0.01)

    async def listen():
        async with aclosing(Live(Catalog(tmp_path)).stream()) as stream:
            await anext(stream)
            assert (await anext(stream)).startswith(":")

    asyncio.run(asyncio.wait_for(listen(), 30))


def filmed(root):
    """The newest film of the only run below `root`, when it is done."""

    async def film():
        catalog, made = Catalog(root), Films()
        catalog.look()
        (entry,) = catalog.entries.values()
        try:
            found = made.newest(entry)
            assert found is not None
            assert made.newest(entry) is found
            while found.state == "filming":
                await asyncio.sleep(0.05)
            return found, found.file.read_bytes() if found.file.exists() else b""
        finally:
            made.close()
            assert not found.file.exists()

    return asyncio.run(asyncio.wait_for(film(), 300))


def train(root, env):
    return surefoot.train(
        env, run_dir=root / "one", preset="none", total_steps=256, num_envs=2, rollout_length=64, num_minibatches=2,
        progress=False, eval_episodes=0, seed=0,
    )  # fmt: skip


@pytest.mark.slow
def test_a_film_is_made_in_a_process_of_its_own_and_nothing_is_written_to_the_run(tmp_path):
    run = train(tmp_path, "CartPole-v1")
    before = sorted(path.name for path in run.path.rglob("*"))
    film, data = filmed(tmp_path)
    assert (film.state, film.why, film.step, film.shown) == ("ready", None, 256, 256)
    assert data[4:8] == b"ftyp"
    assert sorted(path.name for path in run.path.rglob("*")) == before


@pytest.mark.slow
def test_code_that_a_run_names_is_executed_only_if_this_user_made_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ENV)
    run = train(tmp_path / "runs", "mine.py:make")
    (tmp_path / "executed").unlink()
    film, _ = filmed(tmp_path / "runs")
    assert film.state == "ready"
    assert (tmp_path / "executed").exists()
    (tmp_path / "executed").unlink()
    manifest = json.loads((run.path / "manifest.json").read_text())
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "signature": "a stranger's"}))
    film, data = filmed(tmp_path / "runs")
    assert (film.state, data) == ("failed", b"")
    assert "names code" in film.why
    assert not (tmp_path / "executed").exists()


def test_a_run_without_a_checkpoint_has_no_film(tmp_path):
    write_run(tmp_path / "one", rows=3)

    async def film():
        catalog, made = Catalog(tmp_path), Films()
        catalog.look()
        assert made.newest(catalog.entries["one"]) is None
        made.close()

    asyncio.run(film())


@pytest.mark.slow
def test_an_update_is_computed_again_and_nothing_is_written_to_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ENV)
    run = train(tmp_path / "runs", "mine.py:make")
    before = sorted(path.name for path in run.path.rglob("*"))
    with TestClient(make_app(tmp_path / "runs"), base_url="http://127.0.0.1") as client:

        def ask(update):
            address, page = f"/api/replay?run=one&update={update}", {"origin": "http://127.0.0.1"}
            answer = client.post(address, headers=page)
            return answer.status_code, answer.json().get("text") or answer.json()["error"]

        client.get("/api/runs")
        status, text = ask(2)
        assert status == 200
        assert text.startswith("update")
        assert "as logged, exactly" in text
        assert sorted(path.name for path in run.path.rglob("*")) == before
        assert ask(99) == (422, f"there is no update 99; {run.path} has updates 1 to 2")
        assert ask("2; rm")[0] == ask("٣")[0] == ask("")[0] == 400
        assert client.post("/api/replay?run=one&update=2").status_code == 403  # a form elsewhere
        manifest = json.loads((run.path / "manifest.json").read_text())
        (run.path / "manifest.json").write_text(json.dumps({**manifest, "signature": "a stranger's"}))
        (tmp_path / "executed").unlink()
        status, why = ask(2)
        assert (status, "names code" in why) == (422, True)
        assert not (tmp_path / "executed").exists()


def test_one_update_at_a_time_and_none_after_the_page(tmp_path, monkeypatch):
    write_run(tmp_path / "one", rows=3)
    ended = []

    async def endless(*words):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(words[0])

    async def ask_twice():
        catalog, made = Catalog(tmp_path), replays.Replays()
        catalog.look()
        first = asyncio.create_task(made.look(catalog.entries["one"], "1"))
        await asyncio.sleep(0.01)
        with pytest.raises(HTTPException, match="another update is being replayed"):
            await made.look(catalog.entries["one"], "2")
        made.close()
        with pytest.raises(asyncio.CancelledError):
            await first

    monkeypatch.setattr(replays, "surefoot", endless)
    asyncio.run(ask_twice())
    assert ended == ["replay"]


def test_what_went_wrong_is_told_from_the_commands_own_line_on():
    assert processes.reason("a warning\nsurefoot: there is no ffmpeg\nmore") == "there is no ffmpeg\nmore"
    assert processes.reason("") == "it could not be done"
