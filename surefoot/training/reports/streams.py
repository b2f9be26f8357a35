"""Output streams that may fail at any time: a closed terminal, a pipe without a reader, a full disk."""

from __future__ import annotations

from typing import Any, TextIO, cast


class Outlet:
    """A text stream that never raises. After its first error it discards everything."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: OSError | ValueError | None = None  # ValueError: it was closed

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def _try(self, method: str, *arguments: str) -> None:
        if self.error is None:
            try:
                getattr(self.stream, method)(*arguments)
            except (OSError, ValueError) as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def unfailing(stream: TextIO) -> TextIO:
    """Wrap the stream in an Outlet."""
    return stream if isinstance(stream, Outlet) else cast(TextIO, Outlet(stream))
