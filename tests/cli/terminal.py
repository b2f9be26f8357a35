"""A terminal for tests: a pseudo-terminal of a given size, and the screen that its bytes draw."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from contextlib import contextmanager

SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\]8;[^\x1b]*\x1b\\")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


class Screen:
    """What a terminal `columns` wide shows. `broken`: the lines that it had to break, as a terminal does: anywhere."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.column, self.broken = columns, [[]], 0, 0, []

    def feed(self, text):
        while text:
            if match := SEQUENCE.match(text):
                self._control(match[1], match[2])
                text = text[match.end() :]
            else:
                self._put(text[0])
                text = text[1:]
        return self

    def _put(self, letter):
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._down()
        elif letter.isprintable():
            if self.column == self.columns:
                self.broken.append("".join(self.rows[self.row]))
                self._down()
                self.column = 0
            row = self.rows[self.row]
            row += [" "] * (self.column + 1 - len(row))
            row[self.column] = letter
            self.column += 1

    def _control(self, numbers, kind):
        if kind == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif kind == "K":
            row = self.rows[self.row]
            del row[0 if numbers == "2" else self.column :]
        else:
            assert kind in "mhl", f"a sequence that this terminal does not know: {numbers}{kind}"

    def _down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    @property
    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.rows)


@contextmanager
def terminal(monkeypatch, columns, lines=60):
    """sys.stdout and sys.stderr are a terminal of this size; yields a list that holds its bytes as text at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    chunks, result = [], []

    def read():
        try:
            while chunk := os.read(master, 65536):
                chunks.append(chunk)
        except OSError:  # the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            yield result
    finally:
        reader.join()
        os.close(master)
    result.append(b"".join(chunks).decode())
