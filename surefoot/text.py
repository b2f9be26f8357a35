"""What a stranger wrote, as it may be shown: no character of it moves the cursor, hides a line or reverses one.

Run names, env ids, manifests, settings and the errors of environments end up in messages and tables. A terminal obeys
the control characters in them, and a log is read in a terminal sooner or later. So every `print` of this package is the
one below, every error of ours speaks through `printable`, and so does every line of a log.
"""

from __future__ import annotations

import sys
from typing import TextIO


def printable(text: str) -> str:
    """`text` with every character escaped that is not a visible one; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def one_line(text: str, longest: int = 200) -> str:
    """The same for a single value among our own words, which must not begin a line of its own or push others out."""
    shown = "".join(c if c.isprintable() else _escaped(c) for c in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python carries a byte of a file name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def print(*values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Python's `print` for text that a stranger may have written a part of."""
    stream = sys.stdout if file is None else file
    if stream is None:  # closed before the process began
        return
    text = sep.join(printable(str(value)) for value in values) + end
    try:
        stream.write(text)
    except UnicodeEncodeError:  # an encoding that lacks our dashes and arrows
        known = stream.encoding or "ascii"
        stream.write(text.encode(known, "backslashreplace").decode(known))
    if flush:
        stream.flush()
