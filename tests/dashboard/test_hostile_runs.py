"""Runs whose files hold anything at all, beside a sound one: the page shows that, and has an answer for the rest."""

import asyncio
import json
import os
import shutil

import pytest
from starlette.testclient import TestClient

from benchmarks.many_runs import write_run
from surefoot.dashboard import live
from surefoot.dashboard.app import make_app
from surefoot.dashboard.live import Live
from surefoot.dashboard.replies import to_json
from surefoot.runs import Catalog, columns
from surefoot.runs.columns import columns_of, open_log

HUGE = "1" + "0" * 400  # too large for a float
ENDLESS = "1" * 5000  # more digits than Python reads
QUESTIONS = (
    "/api/metrics?run=odd&run=sound",
    "/api/curves?run=odd&metric=kl",
    "/api/curves?run=odd&metric=kl&x=seconds",
    "/api/curves?run=odd&run=sound&metric=kl&smooth=0.5&from=1&to=1e300",
    "/api/compare?run=odd&run=sound&metric=kl",
    "/api/compare?run=odd&run=sound",
    "/api/run?run=odd",
    "/api/config?run=odd&run=sound",
    "/download/metrics.csv?run=odd",
    "/download/manifest.json?run=odd",
)


@pytest.fixture
def root(tmp_path):
    write_run(tmp_path / "all" / "odd", number=0, rows=20)
    write_run(tmp_path / "all" / "sound", number=10, rows=20)
    return tmp_path / "all"


@pytest.fixture
def client(root):
    with TestClient(make_app(root), base_url="http://127.0.0.1:6060") as client:  # raises what the server raises
        client.get("/api/runs")
        yield client


def listed(client):
    answer = client.get("/api/runs")
    assert answer.status_code == 200, answer.text
    return {run["id"]: run for run in answer.json()["runs"]}


def check(client):
    assert listed(client)["sound"]["why"] is None
    for question in QUESTIONS:
        answer = client.get(question)
        assert answer.status_code in (200, 404, 422), question
        if not question.startswith("/download"):
            json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    "value", ['{"x": NaN}', '{"x": [1e999, -Infinity]}', '{"x": "\\ud800"}', f'{{"x": {"[" * 900}{"]" * 900}}}']
)
@pytest.mark.parametrize("file", ["manifest.json", "result.json"])
def test_values_that_json_does_not_have(client, root, file, value):
    facts = json.loads((root / "odd" / "manifest.json").read_text()) if file == "manifest.json" else {}
    (root / "odd" / file).write_text(json.dumps(facts)[:-1] + (", " if facts else "") + value[1:])
    check(client)


def test_deep_nesting_is_cut_and_the_rest_is_sent():
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    sent = json.loads(to_json({"deep": deep, "nan": float("nan"), "text": "x", "tuple": (1.5,)}))
    assert (sent["nan"], sent["text"], sent["tuple"]) == (None, "x", [1.5])
    assert str(sent["deep"]).strip("[]") == "'…'"


@pytest.mark.parametrize(
    "row",
    [
        f'{{"step": 99999, "kl": {HUGE}, "x": {{"a": 1}}}}',
        f'{{"step": {HUGE}, "update": {HUGE}, "kl": 1, "x": []}}',
        f'{{"step": 99999, "kl": {ENDLESS}, "x": []}}',
        '{"step": 99999,\r "kl": 1.0,\r "x": [1]}',
        '{"step": 99999, "kl": 1e308}\n{"step": 199999, "kl": -1e308}\n{"step": 199999, "kl": -1e308}',
        '{"step": 1e308, "update": 1e308, "kl": 1}\n{"step": -1e308, "kl": NaN}',
        '{"step": 99999, "kl": 1.0, "\\ud800": 5, "t": "\\ud801"}',
        f'{{"step": 99999, "kl": {"[" * 100_000}',
    ],
)
def test_odd_rows(client, root, row):
    with open(root / "odd" / "metrics.jsonl", "a", encoding="utf-8", newline="") as file:
        file.write(f"{row}\n")
    check(client)


def test_a_carriage_return_does_not_end_a_row():
    found = columns_of(b'{"step": 1,\r "kl": 2.0, "x": []}\n\n{"step": 3}\n', ["step", "kl"])
    assert found["step"][0::2] == [1.0, 3.0]
    assert [len(values) for values in found.values()] == [3, 3]
    assert found["kl"][0] == 2.0


def test_a_long_row_is_read_in_pieces_and_an_endless_one_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "PROBE", 64)
    log = tmp_path / "log"
    log.write_bytes(b'{"step": 1}\n' + b'{"step": 2, "x": "' + b"x" * 1000 + b'"}\n{"step": 3}\n')
    with open_log(log) as found:
        assert found.line_at(1)[0] == 12
        assert len(found.line_at(1)[1]) == 1021
        assert found.line_at(13)[1] == b'{"step": 3}\n'
    monkeypatch.setattr(columns, "LONGEST_LINE", 500)
    log.write_bytes(b"\n" + b"x" * 10_000)
    with open_log(log) as found:
        assert found.size == 0


@pytest.mark.parametrize("steps", [ENDLESS, "²"])
def test_total_steps_that_are_no_number(client, root, steps):
    with open(root / "odd" / "config.toml", "a", encoding="utf-8") as file:
        file.write(f"total_steps = {steps}\n")
    check(client)


def test_a_manifest_that_links_to_itself(client, root):
    (root / "odd" / "manifest.json").unlink()
    (root / "odd" / "manifest.json").symlink_to("manifest.json")
    assert "link" in listed(client)["odd"]["why"]
    check(client)
    labels = [group["label"] for group in client.get("/api/metrics?run=odd&run=sound").json()["groups"]]
    assert labels[0] == "odd"


def test_a_folder_whose_name_is_not_utf8(client, root):
    os.rename(root / "odd", os.fsencode(root) + b"/odd\xff")
    assert "odd\\xff" in listed(client)
    for path in ("/api/run", "/api/config", "/download/metrics.csv"):
        assert client.get(path, params={"run": "odd\\xff"}).status_code == 200


@pytest.mark.parametrize(
    "question",
    [
        f"/api/watch?run=odd&step={ENDLESS}",
        f"/film.mp4?run=odd&step={ENDLESS}",
        "/api/watch?run=odd&step=²",
        "/video.mp4?run=odd&file=%00.mp4",
        f"/video.mp4?run=odd&file={'a' * 5000}.mp4",
    ],
)
def test_names_and_numbers_that_nothing_has(client, root, question):
    (root / "odd" / "videos").mkdir()
    assert client.get(question).status_code == 404


@pytest.mark.parametrize("what", ["run", "folder above"])
def test_a_run_that_a_link_replaces_while_it_is_served(root, what):
    secret = root.parent / "secret"
    write_run(root / "group" / "one", rows=5)
    write_run(secret / "one", rows=5)
    for place in (root / "group" / "one", secret / "one"):
        (place / "videos").mkdir()
        (place / "videos" / "x.mp4").write_bytes(b"secret")
    with TestClient(make_app(root), base_url="http://127.0.0.1:6060") as client:
        client.get("/api/runs")
        assert client.get("/video.mp4?run=group/one&file=x.mp4").content == b"secret"
        gone, target = (root / "group", secret) if what == "folder above" else (root / "group" / "one", secret / "one")
        shutil.rmtree(gone)
        gone.symlink_to(target)
        for path in ("/video.mp4?file=x.mp4&", "/api/run?", "/api/curves?metric=kl&", "/download/config.toml?"):
            assert client.get(f"{path}run=group/one").status_code == 404


def test_labels_do_not_show_what_a_linked_file_holds(client, root):
    shutil.copytree(root / "odd", root / "other")
    for run, value in (("odd", "SECRET"), ("other", "plain")):
        (root.parent / run).write_text(f'learning_rate = 0.1\ntoken = "{value}"\n')
        (root / run / "config.toml").unlink()
        (root / run / "config.toml").symlink_to(root.parent / run)
    listed(client)
    for path in ("/api/metrics", "/api/apart", "/api/compare"):
        assert "SECRET" not in client.get(f"{path}?run=odd&run=other&run=sound").text


def test_a_page_that_reads_nothing_is_let_go(tmp_path, monkeypatch):
    """Its events are not kept without end; it connects again and reads the list anew."""
    monkeypatch.setattr(live, "WAITING", 3)

    async def scenario():
        lively = Live(Catalog(tmp_path))
        sleeping = lively.stream()
        await anext(sleeping)
        for number in range(5):
            write_run(tmp_path / f"r{number}", number=number, rows=1)
            await lively.look()
        heard = [text async for text in sleeping]
        assert heard == []
        assert lively._watching is None

    asyncio.run(asyncio.wait_for(scenario(), 30))
