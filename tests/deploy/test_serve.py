"""`surefoot serve`: the agent's own actions over HTTP, 4xx for everything that is wrong, and it keeps serving."""

import asyncio
import errno
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from surefoot.cli.main import main
from surefoot.deploy.light_agent import LightAgent
from surefoot.deploy.serve import app as serve_app
from surefoot.deploy.serve.app import App, Limits
from surefoot.deploy.serve.server import make_server
from surefoot.errors import UsageError
from surefoot.loopback import listen
from surefoot.patient_server import Patience, Reporter
from tests.deploy.making import BOX, FREE, HYBRID, KINDS, make

RUNS = Path(__file__).parents[1] / "fixtures" / "runs-0.1.0"
OURS = {"host": "127.0.0.1:6070"}
PARTS = spaces.Dict({"arm": FREE, "mode": spaces.Discrete(3, start=1), "bits": spaces.MultiBinary(2)})


def served(observations=FREE, actions=BOX, limits=None, **settings):
    return App(LightAgent(make(observations, actions, **settings)[1]), {}, limits or Limits())


async def asked(app, body, path="/act", method="POST", headers=None):
    """(status, answer, headers) of one request. `body`: an object, or the bytes themselves in one or more parts."""
    raw = body if isinstance(body, (bytes, list)) else json.dumps(body).encode()
    parts = [raw] if isinstance(raw, bytes) else raw
    given = {**OURS, "content-length": str(len(raw))} if isinstance(raw, bytes) else OURS
    scope = {"type": "http", "path": path, "method": method}
    scope["headers"] = [(k.encode(), v.encode()) for k, v in {**given, **(headers or {})}.items()]
    coming = iter(enumerate(parts, 1))
    sent = []

    async def receive():
        number, part = next(coming)
        if isinstance(part, float):
            await asyncio.sleep(part)
            part = b""
        return {"type": "http.request", "body": part, "more_body": number < len(parts)}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    start, content = sent
    answer = content["body"].decode()
    return start["status"], json.loads(answer) if path != "/metrics" else answer, dict(start["headers"])


def ask(app, body, *args, **kwargs):
    return asyncio.run(asked(app, body, *args, **kwargs))


def as_json(value):
    """As a client would write it."""
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [as_json(part) for part in value]
    return np.asarray(value).tolist()


CASES = {
    "box": (FREE, BOX, {}),
    "choices": (FREE, spaces.Discrete(3, start=2), {}),
    "several": (FREE, spaces.MultiDiscrete([2, 3]), {"normalize_observations": True}),
    "parts": (PARTS, HYBRID, {}),
    "lstm": (PARTS, BOX, {"memory": "lstm", "memory_size": 4}),
    "embedding": KINDS["embedding"],
    "bits": KINDS["bits"],
    "grey": KINDS["grey"],
}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_what_the_agent_would_do(name):
    observations, actions, settings = CASES[name]
    app = served(observations, actions, **settings)
    agent, state = app.batcher.agent, None
    observations.seed(3)
    seen = [observations.sample() for _ in range(3)]
    for one in seen:
        question = {"observation": as_json(one)} | ({} if state is None else {"state": state.tolist()})
        status, answer, _ = ask(app, question)
        action, state = agent.predict(one, state)
        assert status == 200
        assert answer["action"] == as_json(action)
        assert answer.get("state") == (None if state is None else state.tolist())
    _, answer, _ = ask(app, {"observations": [as_json(one) for one in seen]})
    alone = [agent.predict(one)[0] for one in seen]
    assert len(answer["actions"]) == 3
    for found, expected in zip(answer["actions"], alone, strict=True):
        flat = [np.ravel(part) for part in _leaves(found)]
        np.testing.assert_allclose(
            np.concatenate(flat), np.concatenate([*map(np.ravel, _leaves(as_json(expected)))]), atol=1e-6
        )


def _leaves(value):
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def test_masks_are_kept():
    app = served(FREE, spaces.Discrete(3), masked=True)
    for legal in range(3):
        mask = [number == legal for number in range(3)]
        assert ask(app, {"observation": [1, 2, 3], "action_mask": mask})[1] == {"action": legal}
    masks = [[1, 0, 0], None, [0, 0, 1]]
    answer = ask(app, {"observations": [[1, 2, 3]] * 3, "action_masks": masks})[1]
    assert (answer["actions"][0], answer["actions"][2]) == (0, 2)
    for wrong in ([0, 0, 0], [1, 1], [2, 0, 1], "all"):
        assert ask(app, {"observation": [1, 2, 3], "action_mask": wrong})[0] == 422
    inside = spaces.Dict({"x": FREE, "action_mask": spaces.MultiBinary(2)})
    app = served(inside, spaces.Discrete(2), masked=True)
    assert ask(app, {"observation": {"x": [1, 2, 3], "action_mask": [0, 1]}})[1] == {"action": 1}
    assert ask(app, {"observation": {"x": [1, 2, 3], "action_mask": [0, 0]}})[0] == 422
    assert ask(app, {"observation": {"x": [1, 2, 3]}})[0] == 422


def test_actions_are_drawn_if_asked_for():
    app = served(FREE, spaces.Discrete(3))
    many = ask(app, {"observations": [[0, 0, 0]] * 200, "deterministic": False})[1]["actions"]
    assert set(many) == {0, 1, 2}
    again = served(FREE, spaces.Discrete(3))
    assert ask(again, {"observations": [[0, 0, 0]] * 200, "deterministic": False})[1]["actions"] == many
    assert len(set(ask(app, {"observations": [[0, 0, 0]] * 200})[1]["actions"])) == 1


def test_what_arrives_together_goes_through_together():
    app = served(limits=Limits(observations=8))
    seen = np.random.default_rng(0).normal(size=(20, 3)).round(3)

    async def at_once():
        return await asyncio.gather(*(asked(app, {"observation": one.tolist()}) for one in seen))

    found = asyncio.run(at_once())
    assert app.batcher.passes == 3  # 8 + 8 + 4
    for one, (status, answer, _) in zip(seen, found, strict=True):
        assert status == 200
        np.testing.assert_allclose(answer["action"], app.batcher.agent.predict(one)[0], atol=1e-6)


def test_one_whose_outputs_are_not_finite_does_not_spoil_the_others():
    app = served(FREE, spaces.Discrete(3), activation="relu")

    async def at_once():
        return await asyncio.gather(*(asked(app, {"observation": [x, x, -x]}) for x in (1.0, 3e38, 2.0)))

    statuses = [status for status, _, _ in asyncio.run(at_once())]
    assert statuses == [200, 422, 200]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"9" * 100_000, 400, "not JSON"),
        (b"[1, 2, 3]", 400, "not a JSON object"),
        (b'{"observation": [NaN, 0, 0]}', 400, "NaN is not a number"),
        (b'{"observation": [0, -Infinity, 0]}', 400, "Infinity"),
        (b'{"observation": [0, 1e999, 0]}', 422, "float32 cannot hold"),
        (b'{"observation": [0, 1e39, 0]}', 422, "float32 cannot hold"),
        ({}, 422, "neither observation"),
        ({"obs": [0, 0, 0]}, 422, "neither observation"),
        ({"observation": [0, 0, 0], "determinstic": True}, 422, "did you mean 'deterministic'"),
        ({"observation": [0, 0, 0], "deterministic": 1}, 422, "not true or false"),
        ({"observation": [0, 0]}, 422, "shape (2,)"),
        ({"observation": [[0, 0, 0]]}, 422, "send it as observations"),
        ({"observation": [0, 0, [0]]}, 422, "does not fit"),
        ({"observation": ["0", "0", "0"]}, 422, "made of numbers"),
        ({"observation": [10**30, 0, 0]}, 422, "made of numbers"),
        ({"observation": None}, 422, "shape ()"),
        ({"observation": {"x": 1}}, 422, "shape ()"),
        ({"observations": []}, 422, "not a list"),
        ({"observations": [0, 0, 0]}, 422, "shape ()"),
        ({"observations": [[0, 0, 0]] * 9}, 413, "at most 8"),
        ({"observation": [0, 0, 0], "state": [1]}, 422, "no memory"),
        ({"observation": [0, 0, 0], "action_mask": [1]}, 422, "not used to train"),
        ({"observations": [[0, 0, 0]], "states": [None, None]}, 422, "2 entries for 1"),
        ({"observation": [0, 0, 0], "x" * 10**6: 1}, 422, "xxx"),
        ({"observation": [0, 0, 0], "\n\x1b\ud800": 1}, 422, "is unknown here"),
        (b'{"observation": ' + b"[" * 60 + b"]" * 60 + b"}", 422, "observation"),
    ],
)
def test_wrong_questions_are_refused_and_the_next_is_answered(body, status, said):
    app = served(limits=Limits(observations=8))
    found, answer, _ = ask(app, body)
    assert (found, said in answer["error"]) == (status, True), answer
    assert len(answer["error"]) <= 400  # it may quote the request, but not send all of it back
    assert answer["error"].isprintable()
    assert ask(app, {"observation": [0, 0, 0]})[0] == 200


def test_states_and_choices_are_checked():
    app = served(PARTS, BOX, memory="gru", memory_size=4)
    sound = {"arm": [0, 0, 0], "mode": 1, "bits": [0, 1]}
    assert ask(app, {"observation": sound, "state": [0, 0, 0, 0.5]})[0] == 200
    for state in ([0] * 5, [0, 0, 0, 1e39], "abcd", [0, 0, 0, None], {"a": 1}, [[0, 0, 0, 0]]):
        assert ask(app, {"observation": sound, "state": state})[0] == 422
    for part in ({"mode": 0}, {"mode": 4}, {"mode": 1.5}, {"bits": [0, 2]}, {"bits": [0]}, {"arm": [0, 0, "a"]}):
        assert ask(app, {"observation": {**sound, **part}})[0] == 422
    assert ask(app, {"observation": {key: sound[key] for key in ("arm", "bits")}})[0] == 422


SEEN = spaces.Dict(
    {"image": spaces.Box(0, 255, (2, 2, 3), np.uint8), "at": spaces.Tuple((FREE, spaces.Discrete(2))), "arm": FREE}
)
SOUND = {"image": [[[0, 128, 255]] * 2] * 2, "at": [[0, 0, 0], 1], "arm": [0, 0, 0]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"image": [[[0, 0, 300]] * 2] * 2}, "image has numbers other than whole ones from 0 to 255"),
        ({"image": [[[0, 0, -1]] * 2] * 2}, "image has numbers other than whole ones from 0 to 255"),
        ({"image": [[[0, 0, 0.5]] * 2] * 2}, "image has numbers other than whole ones from 0 to 255"),
        ({"imgae": 1}, "the observation has 'imgae', which the policy's space does not have"),
        ({"at": [[0, 0, 0], 1, 1]}, "the observation has 'at/2', which"),
        ({"at": [[0, 0, 0]]}, "'at/1' is missing"),
        ({"image": None}, "'image'"),
        ({"arm": [0, 0, 1e39]}, "float32 cannot hold"),
    ],
)
def test_what_is_not_in_the_space_is_refused_in_clear_words(changed, said):
    app = served(SEEN, BOX)  # warnings, such as NumPy's of an overflow, are errors in tests
    assert ask(app, {"observation": SOUND})[0] == 200
    status, answer, _ = ask(app, {"observation": {**SOUND, **changed}})
    assert (status, said in answer["error"]) == (422, True), answer
    without = {key: part for key, part in SOUND.items() if key != "image"}
    assert ask(app, {"observation": without})[1]["error"].endswith(": 'image' is missing")


def test_a_plain_image_has_bytes_and_a_wrong_mask_is_called_one():
    app = served(SEEN["image"], BOX)
    assert ask(app, {"observation": SOUND["image"]})[0] == 200
    for wrong in (300, -1, 0.5):
        status, answer, _ = ask(app, {"observation": [[[0, 0, wrong]] * 2] * 2})
        assert (status, "whole ones from 0 to 255" in answer["error"]) == (422, True)
        with pytest.raises(UsageError, match="whole ones from 0 to 255"):
            app.batcher.agent.predict(np.full((2, 2, 3), wrong))
    app = served(FREE, spaces.Discrete(3), masked=True)
    said = "not an action mask of this policy: the action mask leaves no legal action"
    assert ask(app, {"observation": [0, 0, 0], "action_mask": [0, 0, 0]})[1] == {"error": said}
    with pytest.raises(UsageError, match=f"^{said}"):
        app.batcher.agent.predict([0, 0, 0], action_masks=[0, 0, 0])


def test_requests_that_are_too_large_or_too_slow(monkeypatch):
    app = served(limits=Limits(bytes=100))
    status, _, headers = ask(app, b"x" * 101)
    assert (status, headers[b"connection"]) == (413, b"close")
    assert ask(app, [b"x" * 60, b"x" * 60])[0] == 413  # its length is not told beforehand
    assert ask(app, b"{}", headers={"content-length": "many"})[0] == 413
    monkeypatch.setattr(serve_app, "PATIENCE", 0.01)
    assert ask(app, [b'{"observation"', 5.0])[0] == 408
    monkeypatch.undo()
    assert ask(app, [b'{"observation":', b"[0,0,0]}"])[0] == 200


def test_other_paths_methods_and_pages():
    app = served()
    assert ask(app, b"", "/nothing", "GET")[0] == 404
    status, _, headers = ask(app, b"", "/act", "GET")
    assert (status, headers[b"allow"]) == (405, b"POST")
    assert ask(app, b"", "/health", "DELETE")[0] == 405
    assert ask(app, b"", "/health", "GET")[1] == {"status": "ok"}
    assert ask(app, b"", "/", "GET")[1]["limits"] == {"bytes": 8 * 2**20, "observations": 256}
    question = {"observation": [0, 0, 0]}
    for headers in (
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:6070"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ):
        assert ask(app, question, headers=headers)[0] == 403
    assert ask(app, question, headers={"host": "localhost:99", "origin": "http://localhost:99"})[0] == 200


def test_the_metrics_count():
    app = served()
    ask(app, {"observations": [[0, 0, 0]] * 5})
    ask(app, {})
    _, text, headers = ask(app, b"", "/metrics", "GET")
    assert headers[b"content-type"].startswith(b"text/plain")
    for line in (
        'surefoot_requests_total{status="200"} 1',
        'surefoot_requests_total{status="422"} 1',
        "surefoot_observations_total 5",
        "surefoot_passes_total 1",
        'surefoot_request_seconds_bucket{le="+Inf"} 2',
        "surefoot_request_seconds_count 2",
    ):
        assert line in text.splitlines()


def test_a_port_in_use_and_wrong_flags_are_clear_errors(capsys):
    with listen("surefoot serve RUN", "127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert taken.proto == socket.IPPROTO_TCP  # or asyncio would let small answers wait for 40 ms
        assert main(["serve", str(RUNS / "ppo-cartpole"), "--port", str(port)]) == 2
    assert f"port {port} on 127.0.0.1 is not available" in capsys.readouterr().err
    for words, said in (
        (["--port", "70000"], "not a valid port"),
        (["--max-batch", "0"], "--max-batch is too small"),
        (["--seed", "-1"], "--seed is too small"),
        (["--checkpoint", "7"], "there is no checkpoint '7'"),
    ):
        assert main(["serve", str(RUNS / "ppo-cartpole"), *words]) in (2, 4)
        assert said in capsys.readouterr().err


def test_connections_that_never_finish_a_request_are_closed_and_others_are_served():
    sound = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    async def opened(port, *parts):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in parts:
            writer.write(part)
        return reader, writer

    async def until_the_end(reader, writer):
        while await reader.read(4096):
            pass
        writer.close()

    async def scene(port):
        server = make_server(served(), arrive=0.5)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        patient = await opened(port, sound)  # idle after its first answer, which is no offence
        assert b"200 OK" in await patient[0].readuntil(b"}")
        hanging = [await opened(port, part) for part in (b"", b"GET /hea", sound[:-2], b"\r\n", sound)]
        assert b"200 OK" in await hanging[-1][0].readuntil(b"}")
        hanging[-1][1].write(b"GET /hea")
        for connection in hanging:
            await asyncio.wait_for(until_the_end(*connection), 60)
        patient[1].write(sound)
        assert b"200 OK" in await patient[0].readuntil(b"}")
        patient[1].close()
        server.should_exit = True
        await running

    with listen("surefoot serve RUN", "127.0.0.1", 0) as listening:
        asyncio.run(scene(listening.getsockname()[1]))


def test_connections_that_find_no_free_file_are_one_line(capsys):
    """asyncio would print a traceback for each, and fill the disk with them."""
    others = []

    async def scene():
        loop = asyncio.get_running_loop()
        loop.default_exception_handler = others.append
        loop.set_exception_handler(Reporter())
        for _ in range(1000):
            error = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})
        loop.call_exception_handler({"message": "something else"})

    asyncio.run(scene())
    assert capsys.readouterr().err == "note: no more connections can be taken at present: Too many open files\n"
    assert [context["message"] for context in others] == ["something else"]


def test_what_counts_as_not_moving_on(monkeypatch):
    class Transport:
        closing = aborted = False

        def is_closing(self):
            return self.closing

        def abort(self):
            self.aborted = True

    class Connection:
        cycle = timeout_keep_alive_task = None

        def __init__(self):
            self.transport = Transport()

    class Cycle:
        response_complete = False

    clock = [0.0]
    monkeypatch.setattr("surefoot.patient_server.monotonic", lambda: clock[0])
    _, idle, busy, next_one, leaving = connections = [Connection() for _ in range(5)]
    idle.timeout_keep_alive_task = object()
    busy.cycle, next_one.cycle, leaving.transport.closing = Cycle(), Cycle(), True
    page, server = Patience(10, None), Patience(10, 60)
    lost = {}
    for now in (0.0, 9.0, 11.0, 59.0, 61.0, 119.0):
        clock[0] = now
        if now == 59.0:
            next_one.cycle = Cycle()  # another request over the same connection
        server.look(connections)
        lost[now] = [each.transport.aborted for each in connections]
    assert lost[9.0] == [False] * 5
    assert lost[11.0] == lost[59.0] == [True, False, False, False, True]
    assert lost[61.0] == lost[119.0] == [True, False, True, False, True]
    busy.transport.aborted = False
    page.look([busy])
    clock[0] = 10_000.0
    page.look([busy])
    assert not busy.transport.aborted  # a page's live stream has no end


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_whole_server(end):
    words = [sys.executable, "-m", "surefoot", "serve", str(RUNS / "ppo-gru"), "--port", "0", "--max-bytes", "1000"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    opened = []
    try:
        port = int(re.search(r":(\d+)/act", process.stdout.readline())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        opened.append(connection)

        def post(body):
            connection.request("POST", "/act", body)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        state = None
        for _ in range(3):  # over one connection
            status, answer = post(json.dumps({"observation": [0, 0.1, 0, 0], "state": state}))
            assert status == 200
            state = answer["state"]
        assert post("{")[0] == 400
        assert post("x" * 2000)[0] == 413
        for garbage in (b"\x16\x03\x01 no HTTP\r\n\r\n", b"POST /act HTTP/1.1\r\nContent-Length: -4\r\n\r\n", b"GET"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
                raw.sendall(garbage)
        assert post('{"observation": [0, 0, 0, 0]}')[0] == 200
        assert "surefoot_requests_total" in _get(port, "/metrics")
    finally:
        process.send_signal(end)
        out, err = process.communicate(timeout=60)
        for connection in opened:  # after the end: an idle connection must not keep the server
            connection.close()
    assert process.returncode == 0
    assert "Traceback" not in out + err


def _get(port, path):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


@pytest.mark.slow
def test_it_serves_without_torch_and_gymnasium():
    code = (
        "import sys; import surefoot.deploy.serve.server; from surefoot.cli.main import main; "
        "from surefoot.deploy.serve import server; server._Server.run = lambda *a, **k: None; "
        f"main(['serve', {str(RUNS / 'ppo-cartpole')!r}, '--port', '0']); "
        "print({'torch', 'gymnasium', 'starlette'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
