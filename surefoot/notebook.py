"""What notebooks show in place of a repr: small tables, and videos that play in the page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path

from surefoot.text import one_line

LARGEST_INLINE = 32 * 2**20  # bytes; a notebook file stores what it displays


def table(title: str, rows: Mapping[str, str]) -> str:
    """Two columns under a title. A stranger may have written any of it, so everything is escaped."""
    lines = "".join(
        f'<tr><th style="text-align:left">{_text(name)}</th><td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<table><caption style="text-align:left"><b>{_text(title)}</b></caption>{lines}</table>'


def video(path: Path, width: int) -> str:
    """The mp4 itself, embedded in the page; only its name if it is missing or too large."""
    try:
        if path.stat().st_size > LARGEST_INLINE:
            return f"<p>{_text(str(path))} is too large to be shown here.</p>"
        content = b64encode(path.read_bytes()).decode()
    except OSError as error:
        return f"<p>{_text(str(path))} cannot be read: {_text(str(error.strerror))}</p>"
    return f'<video controls loop width="{min(width, 640)}" src="data:video/mp4;base64,{content}"></video>'


def _text(value: str) -> str:
    return escape(one_line(value))
