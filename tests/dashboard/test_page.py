"""The server behind `surefoot ui`, asked by HTTP: answers, bad questions, and who may ask at all."""

import csv
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from benchmarks.many_runs import write_rows, write_run
from surefoot.analysis.curves import Curve
from surefoot.analysis.logs import Log
from surefoot.analysis.watch import Advice
from surefoot.cli.main import main
from surefoot.dashboard import curves
from surefoot.dashboard.app import make_app
from surefoot.dashboard.curves import Columns, read_curve
from surefoot.dashboard.groups import merged, smoothed
from surefoot.dashboard.guard import POLICY
from surefoot.dashboard.server import address_of
from surefoot.runs import Run, RunDirectory

HERE = "http://127.0.0.1:6060"


@pytest.fixture
def root(tmp_path):
    for number in (0, 1, 10):  # two seeds of a2c, and one of npg
        write_run(tmp_path / "all" / f"r{number}", number=number, rows=50)
    return tmp_path / "all"


@pytest.fixture
def client(root):
    with TestClient(make_app(root), base_url=HERE) as client:
        client.get("/api/runs")
        yield client


def ask(client, path, status=200, **parameters):
    answer = client.get(path, params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


class TestAnswers:
    def test_the_list(self, client, root):
        found = ask(client, "/api/runs")
        assert found["latest"] == "r10"
        assert [run["id"] for run in found["runs"]] == ["r10", "r1", "r0"]
        assert found["path"] == str(root)

    def test_no_runs(self, tmp_path):
        with TestClient(make_app(tmp_path / "nothing"), base_url=HERE) as client:
            assert ask(client, "/api/runs")["runs"] == []

    def test_metrics_know_the_instruments_first_and_their_ranges(self, client):
        found = {metric["name"]: metric for metric in ask(client, "/api/metrics", run=["r0", "r10"])["metrics"]}
        assert found["kl"]["instrument"]
        assert not found["episode_return"]["instrument"]
        assert found["explained_variance"]["healthy"] == [0.0, 1.0]
        assert next(iter(found)) == "kl"

    def test_a_curve_is_the_rows(self, client, root):
        (curve,) = ask(client, "/api/curves", run="r0", metric="kl")["curves"]
        rows = Run(root / "r0").metrics
        assert curve["x"] == [row["step"] for row in rows]
        assert curve["y"] == pytest.approx([row["kl"] for row in rows], rel=1e-6)
        assert curve["label"] == "CartPole-v1 · a2c · seed 0"

    def test_seeds_are_one_curve_with_a_band_or_each_their_own(self, client, root):
        first, second = ask(client, "/api/curves", run=["r0", "r10", "r1"], metric="kl")["curves"]
        assert (first["runs"], second["runs"]) == (["r0", "r1"], ["r10"])
        both = np.array([[row["kl"] for row in Run(root / name).metrics] for name in ("r0", "r1")])
        np.testing.assert_allclose(first["y"], both.mean(0), rtol=1e-5)
        np.testing.assert_allclose(first["low"], both.min(0), rtol=1e-5)
        np.testing.assert_allclose(first["high"], both.max(0), rtol=1e-5)
        assert len(ask(client, "/api/curves", run=["r0", "r10", "r1"], metric="kl", group="none")["curves"]) == 3

    def test_a_spike_in_a_long_curve_is_drawn(self, client, root):
        write_rows(root / "r0" / "metrics.jsonl", 5000)
        lines = (root / "r0" / "metrics.jsonl").read_text().splitlines(keepends=True)
        lines[3333] = lines[3333].replace('"kl": ', '"kl": 99')
        (root / "r0" / "metrics.jsonl").write_text("".join(lines))
        (curve,) = ask(client, "/api/curves", run="r0", metric="kl", smooth=0.03)["curves"]
        assert len(curve["x"]) <= 801
        assert max(curve["y"]) > 90
        assert max(curve["smooth_y"]) < 10

    def test_groups_are_called_by_what_sets_them_apart(self, client, root):
        config = (root / "r1" / "config.toml").read_text()
        (root / "r1" / "config.toml").write_text(config.replace("0.0003", "0.01"))
        ask(client, "/api/runs")
        found = ask(client, "/api/metrics", run=["r0", "r1"])["groups"]
        assert [group["label"] for group in found] == [
            "CartPole-v1 · a2c · learning_rate=0.0003 · seed 0",
            "CartPole-v1 · a2c · learning_rate=0.01 · seed 1",
        ]
        assert len(ask(client, "/api/metrics", run=["r0", "r10"], group="none")["groups"]) == 2
        told = {"r0": "learning_rate=0.0003", "r1": "learning_rate=0.01", "r10": ""}
        assert ask(client, "/api/apart", run=["r0", "r1", "r10"])["apart"] == told  # npg is the only one
        groups = ask(client, "/api/compare", run=["r0", "r1"])["groups"]
        assert [group["label"] for group in groups] == ["a2c · learning_rate=0.0003", "a2c · learning_rate=0.01"]

    def test_other_axes_and_a_zoom(self, client, root):
        (curve,) = ask(client, "/api/curves", run="r0", metric="kl", x="update")["curves"]
        assert curve["x"] == list(range(1, 51))
        (curve,) = ask(client, "/api/curves", run="r0", metric="kl", x="seconds")["curves"]
        assert curve["x"] == pytest.approx([row["seconds"] for row in Run(root / "r0").timings])
        for axis, span in (("update", (10, 12)), ("seconds", (0.95, 1.25))):
            (curve,) = ask(client, "/api/curves", run="r0", metric="kl", x=axis, **{"from": span[0], "to": span[1]})[
                "curves"
            ]
            assert 3 <= len(curve["x"]) <= 7
            assert curve["x"][0] <= span[0] < span[1] <= curve["x"][-1]

    def test_a_curve_grows_with_the_log_and_shrinks_with_a_resume(self, client, root):
        def points():
            return len(ask(client, "/api/curves", run="r0", metric="kl")["curves"][0]["x"])

        assert points() == 50
        with open(root / "r0" / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 50000, "kl": 1.0}\n{"step": 50512, "kl"')
        assert points() == 51
        write_rows(root / "r0" / "metrics.jsonl", 7)
        assert points() == 7

    def test_a_metric_that_does_not_exist(self, client):
        found = ask(client, "/api/curves", 404, run="r0", metric="entropi")
        assert found["error"] == "no chosen run has a metric 'entropi'; did you mean 'entropy'?"

    @pytest.mark.parametrize(
        "wrong", [{"x": "time"}, {"middle": "max"}, {"smooth": "x"}, {"smooth": "2"}, {"from": "nan", "to": "1"}]
    )
    def test_a_question_that_makes_no_sense(self, client, wrong):
        assert ask(client, "/api/curves", 400, run="r0", metric="kl", **wrong)["error"]

    def test_a_run_that_vanishes_while_it_is_shown(self, client, root):
        shutil.rmtree(root / "r0")
        (left,) = ask(client, "/api/curves", run=["r0", "r10"], metric="kl")["curves"][1:]
        assert left["runs"] == ["r10"]  # not looked yet
        ask(client, "/api/runs")
        assert "does not exist (any more)" in ask(client, "/api/run", 404, run="r0")["error"]
        (left,) = ask(client, "/api/curves", run=["r0", "r10"], metric="kl")["curves"]
        assert left["runs"] == ["r10"]

    def test_settings_and_their_differences(self, client):
        found = ask(client, "/api/config", run=["r0", "r1", "r10"])
        assert [group["label"] for group in found["groups"]] == ["a2c", "npg"]  # the seeds have a row of their own
        assert found["different"] == ["algo", "seed"]
        assert found["settings"]["seed"] == ["0, 1", "0"]

    def test_a_comparison_has_intervals(self, client):
        found = ask(client, "/api/compare", run=["r0", "r1", "r10"], metric="episode_return")
        first, second = found["groups"]
        assert (first["runs"], second["runs"]) == (2, 1)
        assert first["mean"][1] <= first["mean"][0] <= first["mean"][2]
        assert second["mean"][1:] == [None, None]  # one seed has no interval
        (pair,) = found["pairs"]
        assert not pair["settled"]

    def test_an_interval_ends_at_a_known_limit(self, client, root):
        for seed, value in enumerate((500.0, 460.0)):
            rows = [json.dumps({"step": step, "update": step, "episode_return": value}) + "\n" for step in (1, 2)]
            (root / f"r{seed}" / "metrics.jsonl").write_text("".join(rows))
        (group,) = ask(client, "/api/compare", run=["r0", "r1"], metric="episode_return")["groups"]
        assert group["env"] == "CartPole-v1"
        assert group["mean"] == [480.0, pytest.approx(group["mean"][1]), 500.0]

    def test_a_seed_that_was_run_twice_counts_once(self, client, root):
        shutil.copytree(root / "r0", root / "again")
        ask(client, "/api/runs")
        (group,) = ask(client, "/api/compare", run=["r0", "r1", "again"], metric="episode_return")["groups"]
        assert group["runs"] == 2

    def test_a_run_and_its_files(self, client, root):
        (root / "r0" / "videos").mkdir()
        (root / "r0" / "videos" / "512.mp4").write_bytes(b"film")
        found = ask(client, "/api/run", run="r0")
        assert found["manifest"]["algo"] == "a2c"
        assert [video["file"] for video in found["videos"]] == ["512.mp4"]
        answer = client.get("/video.mp4", params={"run": "r0", "file": "512.mp4"}, headers={"range": "bytes=1-2"})
        assert (answer.status_code, answer.content) == (206, b"il")
        rows = list(csv.DictReader(io.StringIO(client.get("/download/metrics.csv?run=r0").text)))
        assert [float(row["kl"]) for row in rows] == [row["kl"] for row in Run(root / "r0").metrics]
        config = client.get("/download/config.toml?run=r0")
        assert tomllib.loads(config.text) == Run(root / "r0").config
        assert config.headers["content-disposition"].startswith("attachment; filename*=UTF-8''r0-config.toml")
        assert client.get("/download/manifest.json?run=r0").json()["seed"] == 0

    def test_the_diagnosis_is_that_of_the_command(self, client, root, monkeypatch):
        advice = Advice("collapsed", "entropy is 0: try --entropy-coef", "entropy is 0", "--entropy-coef", 12)
        monkeypatch.setattr("surefoot.dashboard.answers.diagnose", lambda run: [advice])
        said = ask(client, "/api/run", run="r0")["diagnosis"]
        assert said == [{"since": "update 12", "text": "entropy is 0: try --entropy-coef"}]
        monkeypatch.setattr("surefoot.dashboard.answers.MOST_DIAGNOSED", 10)  # then only what the run itself said
        assert ask(client, "/api/run", run="r0")["diagnosis"] == []

    def test_a_torn_and_a_damaged_line_and_a_newer_version(self, client, root):
        with open(root / "r0" / "metrics.jsonl", "ab") as file:
            file.write(b'\xff\xfe garbage\n{"step": 90000, "kl": 3.0}\n{"step": 9')
        manifest = json.loads((root / "r0" / "manifest.json").read_text())
        (root / "r0" / "manifest.json").write_text(json.dumps({**manifest, "schema": 9}))
        (run,) = (run for run in ask(client, "/api/runs")["runs"] if run["id"] == "r0")
        assert "newer surefoot" in run["why"]
        (curve,) = ask(client, "/api/curves", run="r0", metric="kl")["curves"]
        assert (len(curve["x"]), curve["x"][-1]) == (51, 90000)


class TestWho:
    """A page on the internet must get nothing out of a server on this machine."""

    @pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events", "/plotly.js", "/static/main.js"])
    @pytest.mark.parametrize(
        "host",
        [
            *(
                "evil.com",
                "evil.com:6060",
                "127.0.0.1.evil.com",
                "192.168.1.7",
                "",
                "[::1",
                "a@b",
                "evil.com@127.0.0.1",
            ),
            *("127.0.0.1#evil.com", "127.0.0.1/evil.com", "127.0.0.1?x", "127.0.0.1:x", "127.0.0.1:70000"),
        ],
    )
    def test_a_foreign_host(self, client, path, host):
        assert client.get(path, headers={"host": host}).status_code == 403

    @pytest.mark.parametrize("host", ["127.0.0.1:6060", "localhost:9999", "[::1]:6060"])
    def test_our_own_hosts(self, client, host):
        assert client.get("/api/runs", headers={"host": host}).status_code == 200

    def test_a_foreign_origin(self, client):
        for origin in (
            "http://evil.com",
            "null",
            "http://127.0.0.1:1234",
            "http://[::1",
            f"{HERE}@evil.com",
            f"x{HERE}",
        ):
            assert client.get("/api/runs", headers={"origin": origin}).status_code == 403
        assert client.get("/api/runs", headers={"origin": HERE}).status_code == 200
        assert (
            client.get("/api/runs", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code
            == 403
        )
        assert (
            client.get("/", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}).status_code == 200
        )

    def test_nothing_is_done_for_a_form_or_a_link(self, client):
        assert client.post("/api/watch?run=r0").status_code == 403  # a browser always says the origin of a POST
        assert client.post("/api/watch?run=r0", headers={"origin": "http://evil.com"}).status_code == 403
        assert client.get("/api/watch?run=r0").status_code == 404

    def test_every_answer_has_strict_headers(self, client):
        for path in ("/", "/api/runs", "/api/run?run=nothing", "/static/main.js", "/nowhere"):
            headers = client.get(path).headers
            assert headers["content-security-policy"] == POLICY
            assert headers["x-content-type-options"] == "nosniff"
        assert "unsafe" not in POLICY
        allowed = client.get("/play").headers["content-security-policy"]
        assert allowed.replace(" 'wasm-unsafe-eval'", "") == POLICY  # one page may do one thing more
        for path in ("/play/", "/play/x", "/static/play.js", "/static/play.html"):
            assert client.get(path, follow_redirects=False).headers["content-security-policy"] == POLICY

    def test_other_machines_need_the_token(self, root):
        app = make_app(root, host="0.0.0.0", token="secret")
        with TestClient(app, base_url="http://10.0.0.5:6060", follow_redirects=False) as client:
            assert client.get("/api/runs").status_code == 401
            assert client.get("/?token=wrong").status_code == 401
            assert client.get("/api/runs?token=secret").status_code == 401  # only the page itself takes it in a link
            assert client.get("/api/runs", headers={"authorization": "Bearer secret"}).status_code == 200
            answer = client.get("/?token=secret")
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            assert {"HttpOnly", "SameSite=lax"} <= set(answer.headers["set-cookie"].split("; "))
            assert client.get("/api/runs").status_code == 200
            assert client.get("/api/runs", headers={"host": "evil.com"}).status_code == 403
            assert client.get("/api/runs", headers={"host": f"{socket.gethostname()}:6060"}).status_code == 200

    def test_addresses_to_open(self):
        assert address_of("127.0.0.1", 6060, None) == "http://127.0.0.1:6060/"
        assert address_of("::1", 6060, None) == "http://[::1]:6060/"
        assert address_of("0.0.0.0", 80, "x") == f"http://{socket.gethostname()}:80/?token=x"


class TestOutside:
    """No file outside of the runs is served, and nothing that a run names is executed."""

    @pytest.mark.parametrize("id", ["../secret", "/etc", "..", "r0/../../secret", "%2e%2e/secret", ""])
    def test_a_run_is_one_of_the_list(self, client, root, id):
        shutil.copytree(root / "r0", root.parent / "secret")
        for path in ("/api/run", "/api/curves", "/download/config.toml"):
            assert client.get(path, params={"run": id}).status_code in (400, 404)

    @pytest.mark.parametrize("file", ["../config.toml", "..\\x.mp4", "../../x.mp4", "x.mp4", "config.toml", "link.mp4"])
    def test_a_video_is_a_plain_file_of_the_run(self, client, root, file):
        (root / "r0" / "videos").mkdir()
        (root / "x.mp4").write_bytes(b"secret")
        (root / "r0" / "videos" / "link.mp4").symlink_to(root / "x.mp4")
        answer = client.get("/video.mp4", params={"run": "r0", "file": file})
        assert answer.status_code in (403, 404)
        assert b"secret" not in answer.content
        assert ask(client, "/api/run", run="r0")["videos"] == []

    def test_a_folder_of_videos_elsewhere(self, client, root):
        (root.parent / "elsewhere").mkdir()
        (root.parent / "elsewhere" / "x.mp4").write_bytes(b"secret")
        (root / "r0" / "videos").symlink_to(root.parent / "elsewhere")
        assert client.get("/video.mp4", params={"run": "r0", "file": "x.mp4"}).status_code == 403
        assert ask(client, "/api/run", 422, run="r0")["error"]

    @pytest.mark.parametrize("file", ["config.toml", "manifest.json", "metrics.jsonl", "timings.jsonl"])
    def test_links_in_a_run(self, client, root, file):
        secret = root.parent / "secret"
        secret.write_text('{"secret": 1, "step": 1, "kl": 7.0, "seconds": 1}\n')
        (root / "r0" / file).unlink()
        (root / "r0" / file).symlink_to(secret)
        ask(client, "/api/runs")
        for path in (
            "/download/config.toml",
            "/download/manifest.json",
            "/download/metrics.csv",
            "/api/run",
            "/api/config",
        ):
            answer = client.get(path, params={"run": "r0"})
            assert answer.status_code == 422
            assert "secret" not in answer.text.replace(str(secret), "")
        curves = client.get("/api/curves", params={"run": "r0", "metric": "kl", "x": "seconds"}).json()
        assert file in ("config.toml", "manifest.json") or not curves["curves"][0]["x"]


class TestCurves:
    def test_smoothing_keeps_a_constant_and_calms_noise(self):
        noise = np.random.default_rng(0).normal(size=1000)
        x = np.arange(1000.0)
        np.testing.assert_allclose(smoothed(Curve(x, np.full(1000, 3.0)), 0.1).y, 3.0)
        assert smoothed(Curve(x, noise), 0.1).y[100:-100].std() < 0.2
        assert smoothed(Curve(x, noise), 0.0).y is noise

    def test_a_group_goes_as_far_as_half_of_its_seeds(self):
        long, short = (Curve(np.arange(n) * 1.0, np.full(n, v)) for n, v in ((100, 1.0), (50, 3.0)))
        x, middle, low, high = merged([long, long, short], "mean", 0.0, 100)
        assert x[-1] == 99
        np.testing.assert_allclose(middle[x <= 49], 5 / 3)
        np.testing.assert_allclose(middle[x > 49.5], 1.0)
        assert (low[0], high[0]) == (1.0, 3.0)
        assert merged([Curve(np.empty(0), np.empty(0))], "iqm", 0.0, 10)[0].size == 0

    def test_five_seeds_and_one_that_failed(self):
        curves = [Curve(np.arange(10.0), np.full(10, v)) for v in (0.0, 10.0, 10.0, 10.0, 10.0)]
        _, middle, low, high = merged(curves, "iqm", 0.0, 100)
        assert (middle[0], low[0], high[0]) == (10, 10, 10)

    def test_a_long_log_is_sampled_and_a_zoom_reads_every_row(self, tmp_path, monkeypatch):
        monkeypatch.setattr(curves, "EXACT", 20_000)
        monkeypatch.setattr(curves, "PLACES", 50)
        write_run(tmp_path / "one", rows=2000)
        run, columns = RunDirectory(tmp_path / "one"), Columns()
        rows = Run(run).metrics
        far, sampled = read_curve(columns, run, "kl", "step", None)
        assert sampled
        assert 90 < len(far.x) < 300
        assert (far.x[0], far.x[-1]) == (512, 2000 * 512)
        known = {row["step"]: row["kl"] for row in rows}
        assert all(known[step] == value for step, value in zip(far.x, far.y, strict=True))
        for axis, span in (("step", (100 * 512, 120 * 512)), ("update", (100, 120)), ("seconds", (10.0, 12.0))):
            near, sampled = read_curve(columns, run, "kl", axis, span)
            assert not sampled
            assert 20 <= len(near.x) <= 24
            assert near.y[:20].tolist() == [row["kl"] for row in rows][99:119]

    @pytest.mark.parametrize("axis", ["step", "seconds"])
    def test_rows_that_a_resumed_run_repeats_count_once_as_in_a_plot(self, tmp_path, axis):
        write_run(tmp_path / "one", rows=1)
        run, steps = RunDirectory(tmp_path / "one"), [100, 200, 300, 200, 300, 400]  # resumed from step 100
        for file, values in ((run.metrics, {"kl": 1.0}), (run.timings, {"seconds": 10.0})):
            rows = [{"step": step} | {n: v * i for n, v in values.items()} for i, step in enumerate(steps, 1)]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        curve, _ = read_curve(Columns(), run, "kl", axis, None)
        plotted = Log(Run(run)).curve("kl", "steps" if axis == "step" else "time")
        assert curve.y.tolist() == plotted.y.tolist() == [1.0, 4.0, 5.0, 6.0]
        assert curve.x.tolist() == plotted.x.tolist()

    def test_new_rows_cost_what_is_new(self, tmp_path, monkeypatch):
        write_run(tmp_path / "one", rows=100)
        run, columns = RunDirectory(tmp_path / "one"), Columns()
        assert len(read_curve(columns, run, "kl", "step", None)[0].x) == 100
        read = []
        whole = curves.columns_of
        monkeypatch.setattr(curves, "columns_of", lambda lines, names: read.append(len(lines)) or whole(lines, names))
        line = b'{"step": 99999, "kl": 1.0}\n'
        with open(run.metrics, "ab") as file:
            file.write(line)
        assert len(read_curve(columns, run, "kl", "step", None)[0].x) == 101
        assert read == [len(line), len(line)]  # once for each of the two columns


class TestCommand:
    def test_a_port_in_use(self, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            assert main(["ui", "--port", str(port)]) == 2
        said = capsys.readouterr().err
        assert f"port {port} on 127.0.0.1 is not available" in said
        assert f"--port {port + 1}" in said

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--port", "x"], "port"),
            (["--port", "70000"], "from 0 to 65535"),
            (["--runs", "nowhere"], "there is no such folder"),
            (["--runs", "file"], "is a file"),
            (["--host", "no-such-host.invalid"], "is not an address of this machine"),
            (["--host", "a..b"], "is not an address of this machine"),
            (["--host", "8.8.8.8"], "is not an address of this machine"),
        ],
    )
    def test_what_cannot_be_served(self, words, said, capsys, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        Path("file").touch()
        assert main(["ui", *words]) == 2
        assert said in capsys.readouterr().err

    @pytest.mark.slow
    def test_ctrl_c_ends_it_quietly_though_a_page_is_open(self, root):
        words = [sys.executable, "-m", "surefoot", "ui", "--runs", str(root), "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
            address = re.search(r"http://\S+", server.stdout.readline())[0]
            with urllib.request.urlopen(f"{address}api/events") as page, socket.socket() as asleep:
                assert page.readline() == b"retry: 1000\n"
                asleep.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # before it connects, to take effect
                asleep.connect(("127.0.0.1", int(address.strip("/").rpartition(":")[2])))
                asleep.sendall(f"GET /plotly.js HTTP/1.1\r\nHost: {address.strip('/')[7:]}\r\n\r\n".encode())
                assert asleep.recv(1)  # a page that asks for megabytes and stops reading
                server.send_signal(signal.SIGINT)
                _, said = server.communicate(timeout=60)
        assert (server.returncode, said) == (0, "")

    def test_without_the_extra_it_says_which_to_install(self, capsys, monkeypatch):
        monkeypatch.setattr("surefoot.drawing.find_spec", lambda name: None if name == "uvicorn" else name)
        assert main(["ui"]) == 2
        assert "needs uvicorn; install the extra: pip install 'surefoot[ui]'" in capsys.readouterr().err


def test_the_page_names_nothing_that_is_not_served(client):
    page = client.get("/").text + client.get("/play").text
    assert "<!-- plotly -->" not in page
    assert "style=" not in page  # the policy forbids it
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        assert client.get(path).status_code == 200, path
    folder = Path(curves.__file__).parent / "static"
    for file in folder.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert "innerHTML" not in text
        assert "insertAdjacentHTML" not in text
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (folder / name).is_file(), name


def test_the_page_needs_no_torch():
    """It starts quickly, and training beside it keeps the memory."""
    code = "import sys, surefoot.dashboard.server; assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
