"""The examples of docs/sweeps.md."""

import json
import re
import shlex
from pathlib import Path

import pytest

from surefoot.cli.main import main
from surefoot.sweep.grid import read_grids
from surefoot.sweep.plan import expand

PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8")
GRIDS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
STOP_AND_GO_ON = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.mark.parametrize(("number", "runs"), [(0, 16), (1, 8)])
def test_the_grids_are_what_the_page_says(number, runs):
    Path("grid.toml").write_text(GRIDS[number], encoding="utf-8")
    assert len(expand(read_grids(Path("grid.toml"))).runs) == runs


@pytest.mark.slow
def test_the_example_of_stopping_and_going_on_works(capsys):
    for line in STOP_AND_GO_ON.splitlines():
        assert main([*shlex.split(line)[1:], "--json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (found["done"], found["failed"]) == (2, 0)
    assert found["skipped"] == 2


@pytest.mark.slow
def test_the_second_grid_trains(capsys):
    Path("grid.toml").write_text(GRIDS[1], encoding="utf-8")
    assert main(["sweep", "grid.toml", "--seeds=0", "--out=out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["done"] == 4
    assert main(["sweep", "out/sweep.toml", "--out=again", "--dry-run"]) == 0
    assert "4 runs in again" in capsys.readouterr().out
