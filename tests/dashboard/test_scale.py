"""A thousand runs are listed in under a second, and a million rows are shown in under two: of the processor's time, for
other tests may have the cores meanwhile."""

import pytest
from starlette.testclient import TestClient

from benchmarks.many_runs import measure, seconds, write_run
from surefoot.dashboard.app import make_app
from surefoot.runs import Catalog

pytestmark = pytest.mark.slow


def test_a_thousand_runs(tmp_path):
    for number in range(1000):
        write_run(tmp_path / f"run-{number}", number=number, rows=100)
    assert min(seconds(Catalog(tmp_path).look)["cpu"] for _ in range(3)) < 1
    with TestClient(make_app(tmp_path), base_url="http://127.0.0.1") as client:
        assert len(client.get("/api/runs").json()["runs"]) == 1000
        assert seconds(lambda: client.get("/api/runs"))["cpu"] < 1


def test_a_million_rows(tmp_path):
    found = measure(tmp_path, runs=1, rows=1_000_000)
    shown = ("open the long run", "its curve", "against wall time", "a zoom")
    assert sum(found[name]["cpu"] for name in shown) < 2
