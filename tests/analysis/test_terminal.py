"""Curves as characters."""

import numpy as np
import pytest

from surefoot.analysis.curves import Band
from surefoot.analysis.pictures import compact, spread_out
from surefoot.analysis.plotting import Line, Panel, Plot
from surefoot.analysis.terminal import draw_panel


def picture(lines, width=40, height=4, **how):
    bands = [Band(*(np.array(part, np.float64) for part in (x, y, y, y)), runs=1, spread="none") for x, y in lines]
    panel = Panel("Env-v0", tuple(Line(f"method {i}", i, found) for i, found in enumerate(bands)))
    plot = Plot("episode_return", "steps", (panel,), "iqm")
    return ["".join(cell.text for cell in row) for row in draw_panel(panel, plot, width, height, **how)]


def test_a_straight_line_goes_from_corner_to_corner():
    rows = picture([([0, 1000], [0, 8])])
    assert rows[0] == "Env-v0: episode_return"
    assert rows[1].startswith(" 8┤")
    assert rows[4].startswith(" 0┤")
    first, last = [row.split("┤")[1] for row in (rows[4], rows[1])]
    assert first[0] != " "
    assert last.rstrip()[-1] != " "
    assert len(last.rstrip()) == 40 - 4  # to the last column
    assert rows[6].split() == ["0", "steps", "1k"]
    assert all(len(row) <= 40 for row in rows)


def test_a_flat_line_of_one_point_and_nothing():
    assert any(0x2801 <= ord(c) <= 0x28FF for row in picture([([5], [3])])[1:5] for c in row)
    panel = Panel("Env-v0", ())
    assert "nothing to draw" in draw_panel(panel, Plot("kl", "steps", (panel,), "iqm"), 40)[0][0].text


def test_several_lines_have_letters_and_plain_text_needs_no_braille():
    lines = [([0, 10], [0, 8]), ([0, 10], [8, 0])]
    rows = picture(lines)
    assert sum("A" in row for row in rows[1:5]) >= 2
    assert rows[-2].strip() == "A method 0: ends at 8"
    plain = picture(lines, braille=False)
    assert "\n".join(plain).isascii()


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_a_picture_is_as_wide_as_asked(width):
    assert max(map(len, picture([([0, 3, 10], [0, 5, -8])], width)[1:6])) <= width


def test_labels_move_apart_and_stay_inside():
    moved = spread_out(np.array([0.5, 0.5, 0.9]), 0.1)
    assert moved == pytest.approx([0.45, 0.55, 0.9])
    top = spread_out(np.array([1.0, 1.0]), 0.1)
    assert top == pytest.approx([0.9, 1.0])


def test_compact_numbers():
    assert [compact(x) for x in (0, 950, 50_000, 2_500_000, -3000)] == ["0", "950", "50k", "2.5M", "-3k"]
