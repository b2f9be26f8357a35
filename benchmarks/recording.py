"""Records a command in a terminal as an animated picture: the live table of a training, for the README.

    pip install pyte pillow
    python benchmarks/recording.py docs/images/live.gif

The command runs in a pseudo-terminal, `pyte` keeps its screen, and Pillow draws the screen whenever it has changed.
Nothing is edited and no pause is cut, except that the last screen stays for a few seconds.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shlex
import struct
import sys
import tempfile
import termios
from pathlib import Path
from time import perf_counter

import matplotlib
import pyte
from PIL import Image, ImageDraw, ImageFont

COMMAND = "surefoot train CartPole-v1 --seed 0 --run-dir cartpole"
FONTS = {False: "DejaVuSansMono.ttf", True: "DejaVuSansMono-Bold.ttf"}  # by whether it is bold
COLUMNS, ROWS, SIZE, MARGIN = 100, 20, 15, 14
EVERY, LAST = 0.12, 5.0  # seconds: between two pictures, and for the last one
BACKGROUND, TEXT = "#14181c", "#d7dde2"
COLORS = {"green": "#5fc28f", "red": "#f0716b", "brightred": "#f27ab0", "brightblack": "#4a5560", "yellow": "#e5c07b"}
COLORS |= {"blue": "#61a9ef", "cyan": "#5bc0be", "magenta": "#c58af9", "brown": "#e5c07b"}


def record(command: str, folder: str) -> list[tuple[Image.Image, float]]:
    """Every screen that the command showed, and for how many seconds."""
    words = [str(Path(sys.executable).with_name("surefoot")), *shlex.split(command)[1:]]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
        os.environ.pop("CI", None)
        os.execv(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {command}\r\n".encode())
    shots = [(draw(screen), perf_counter())]
    while True:
        ready, _, _ = select.select([terminal], [], [], EVERY)
        try:
            if ready and not feed(stream, terminal):
                break
        except OSError:  # the other end is closed
            break
        if screen.dirty and perf_counter() - shots[-1][1] >= EVERY:
            shots.append((draw(screen), perf_counter()))
            screen.dirty.clear()
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit("\n".join(line.rstrip() for line in screen.display))
    shots.append((draw(screen), perf_counter()))
    times = [*(at for _, at in shots[1:]), shots[-1][1] + LAST]
    return [(picture, end - at) for (picture, at), end in zip(shots, times, strict=True)]


def feed(stream: pyte.ByteStream, terminal: int) -> bool:
    data = os.read(terminal, 65536)
    stream.feed(data)
    return bool(data)


def draw(screen: pyte.Screen) -> Image.Image:
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = {bold: ImageFont.truetype(folder / name, SIZE) for bold, name in FONTS.items()}
    width, height = round(fonts[False].getlength("m")), round(SIZE * 1.35)
    picture = Image.new("RGB", (2 * MARGIN + COLUMNS * width, 2 * MARGIN + ROWS * height), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for row in range(ROWS):
        for column in range(COLUMNS):
            letter = screen.buffer[row][column]
            if letter.data.strip():
                place = (MARGIN + column * width, MARGIN + row * height)
                pen.text(place, letter.data, color(letter.fg), fonts[letter.bold])
    return picture


def color(name: str) -> str:
    """pyte names the sixteen basic colours; others are six hexadecimal digits."""
    return COLORS.get(name) or (TEXT if name == "default" else f"#{name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE.gif")
    parser.add_argument("--command", default=COMMAND, help="[%(default)s]")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shots = record(arguments.command, folder)
    pictures = [picture.quantize(24, dither=Image.Dither.NONE) for picture, _ in shots]
    durations = [max(20, round(1000 * seconds)) for _, seconds in shots]
    pictures[0].save(
        arguments.out, save_all=True, append_images=pictures[1:], duration=durations, loop=0, optimize=True
    )
    print(f"{len(shots)} pictures, {sum(durations) / 1000:.1f} s, {arguments.out.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
