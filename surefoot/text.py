"""Makes text from strangers safe to show: no character may move the cursor, hide a line or reverse one.

Run names, env ids, manifests, settings and the errors of environments end up in messages and tables. A terminal obeys
the control characters in them, and logs are read in terminals too. So this package always prints with the `print`
below, and every error message and every line of a log goes through `printable`.
"""

from __future__ import annotations

import sys
from typing import TextIO


def printable(text: str) -> str:
    """`text` with all invisible characters escaped, except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def one_line(text: str, longest: int = 200) -> str:
    """The same for a single value inside our own text: no line breaks, and not too long."""
    shown = "".join(c if c.isprintable() else _escaped(c) for c in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def counted(number: int, noun: str) -> str:
    """`1 episode`, `2 episodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # Python's placeholder for a byte of a file name that is not UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()


def print(*values: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Python's `print`, for text that may come from strangers."""
    stream = sys.stdout if file is None else file
    if stream is None:  # closed before the process started
        return
    text = sep.join(printable(str(value)) for value in values) + end
    try:
        stream.write(text)
    except UnicodeEncodeError:  # the encoding lacks our dashes and arrows
        known = stream.encoding or "ascii"
        stream.write(text.encode(known, "backslashreplace").decode(known))
    if flush:
        stream.flush()
