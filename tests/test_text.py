"""Text of a stranger's: nothing in it reaches a terminal but visible characters."""

import io

import pytest

from surefoot.errors import UsageError
from surefoot.text import one_line, print, printable

ODD = {
    "\x1b[31m": r"\x1b[31m",  # colour
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x9b2J": r"\x9b2J",  # the one-character form of ESC [
    "a\rb": r"a\rb",
    "a\x08b": r"a\x08b",
    "\x7f": r"\x7f",
    "\u202egnp.exe": r"\u202egnp.exe",  # right to left from here
    "\u2066x\u2069": r"\u2066x\u2069",
    "\u200bx": r"\u200bx",  # nothing to see
    "\u2028x": r"\u2028x",
    "\udcff\udc80": r"\xff\x80",  # bytes of a file name
    "\ud800": r"\ud800",
}


@pytest.mark.parametrize("text", ODD)
def test_what_is_not_visible_is_escaped(text):
    assert printable(f"<{text}>") == one_line(f"<{text}>") == f"<{ODD[text]}>"
    assert str(UsageError(text)) == ODD[text]


@pytest.mark.parametrize("text", ["", "plain", "two\nlines\tand a tab", "Grüße, 日本語, λ → ∞ – 95 %", "a\\b", "🦶"])
def test_what_is_visible_stays(text):
    assert printable(text) == text
    assert str(UsageError(text)) == text


def test_a_value_stays_in_its_line_and_has_an_end():
    assert one_line("a\nsurefoot: all is well\t!") == r"a\nsurefoot: all is well\t!"
    assert one_line("x" * 200) == "x" * 200
    assert one_line("x" * 10**6) == "x" * 199 + "…"
    assert len(one_line("\n" * 300)) <= 200


def test_print_is_pythons_with_the_text_made_visible():
    out = io.StringIO()
    print("a\x1b", 5, None, sep="\n", end="\r", file=out)
    assert out.getvalue() == "a\\x1b\n5\nNone\r"


def test_an_encoding_that_lacks_a_character_gets_its_number():
    out = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    print("95 % – λ", file=out)
    assert out.buffer.getvalue() == b"95 % \\u2013 \\u03bb\n"


def test_a_stream_that_was_closed_before_the_process_began_is_none(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    print("nobody hears this")
