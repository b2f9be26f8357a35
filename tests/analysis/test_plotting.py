"""Which lines a plot has, and what it says about runs that are not in it."""

import shutil

import pytest

from surefoot.analysis.groups import group_runs
from surefoot.analysis.pictures import curves_figure
from surefoot.analysis.plotting import Library, Style, plot_groups, plot_runs
from surefoot.errors import UsageError
from surefoot.runs import Run
from tests.analysis.synthetic import make_family, make_run


def plotted(folders, *arguments):
    return plot_runs([Run(folder) for folder in folders], *arguments)


def test_a_panel_per_env_and_the_same_number_for_a_method_in_each(tmp_path):
    families = [("vpg", "A-v0"), ("ppo", "A-v0"), ("ppo", "B-v0")]
    found = plotted([folder for algo, env in families for folder in make_family(tmp_path, algo, [1, 2], env=env)])
    lines = {panel.env: [(line.name, line.index, line.band.runs) for line in panel.lines] for panel in found.panels}
    assert lines == {"A-v0": [("vpg", 0, 2), ("ppo", 1, 2)], "B-v0": [("ppo", 1, 2)]}
    assert found.caption == "line: IQM over runs; band: lowest to highest run"
    assert found.notes == ()


def test_the_caption_says_what_is_drawn(tmp_path):
    six, one = make_family(tmp_path, "ppo", range(6)), make_family(tmp_path, "vpg", [1])
    assert plotted(one).caption == "one run each"
    assert plotted(six).caption == "line: IQM over runs; band: 95 % interval"
    assert plotted(six, "kl", Style(line="mean", spread="none")).caption == "line: mean over runs"
    two = make_family(tmp_path, "a2c", [1, 2])
    assert "fewer than five runs" in plotted([*six, *two]).caption


def test_runs_that_end_early_and_runs_without_the_metric_are_said(tmp_path):
    short = [{"step": 100, "update": 1, "episode_return": 1.0}, {"step": 300, "update": 3, "episode_return": 2.0}]
    without = [{"step": 100, "update": 1, "kl": 1.0}]
    found = plotted(
        [
            *make_family(tmp_path, "ppo", [1, 2]),
            make_run(tmp_path / "short", seed=7, rows=short),
            make_run(tmp_path / "without", seed=8, rows=without),
            make_run(tmp_path / "empty", seed=9, rows=[]),
        ]
    )
    assert found.panels[0].lines[0].band.x[-1] == 300.0
    said = "\n".join(found.notes)
    assert "ppo on CartPole-v1: 1 of 3 runs end before the others; the curve goes to 300 steps of 1,000" in said
    assert "without is left out of the curves: it has no episode_return" in said
    assert "empty is left out of the curves: it has no rows yet" in said


def test_runs_that_vanish_while_they_are_read(tmp_path):
    folders = make_family(tmp_path, "ppo", [1, 2, 3])
    groups, _ = group_runs([Run(folder) for folder in folders])
    shutil.rmtree(folders[1])
    (folders[2] / "metrics.jsonl").write_text("nonsense\n")
    found = plot_groups(groups, Library(), "episode_return", Style())
    assert found.panels[0].lines[0].band.runs == 1
    why = [note.rpartition("left out of the curves: ")[2][:10] for note in found.notes]
    assert why == [str(folders[2])[:10], "it is gone"]
    groups, _ = group_runs([Run(folders[2])])
    with pytest.raises(UsageError, match=r"none of these runs can be read\n.*is damaged in line 1"):
        plot_groups(groups, Library(), "episode_return", Style())


def test_runs_that_share_no_steps_are_not_drawn(tmp_path):
    early = [{"step": s, "update": s, "episode_return": 1.0} for s in (1, 2)]
    late = [{"step": s, "update": s, "episode_return": 1.0} for s in (3, 4)]
    found = plotted([make_run(tmp_path / "a", rows=early), make_run(tmp_path / "b", seed=1, rows=late)])
    assert found.panels[0].lines == ()
    assert "have no steps in common" in found.notes[-1]


def test_nothing_that_can_be_read(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(UsageError, match="none of these runs can be read"):
        plotted([folder])


def test_connectors_begin_beside_the_names_and_not_below_them(tmp_path):
    pytest.importorskip("matplotlib")
    figure = curves_figure(plotted([*make_family(tmp_path, "a", [500, 499]), *make_family(tmp_path, "b", [498, 500])]))
    names = [text for text in figure.axes[0].texts if text.arrowprops]
    assert len(names) == 2
    assert {text.arrowprops["relpos"] for text in names} == {(0.0, 0.5)}
