"""Changes a file of a run, as a bad disk, another version or a forger might: one change per call.

Everything is drawn from one `random.Random`, so a seed repeats a change.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

from surefoot.runs.checkpoints import MANIFEST, seal
from surefoot.runs.episodes import header

HERE = "@here@"  # placeholder for text that JSON libraries would not write
DEEP = ("[" * 500 + "]" * 500, "[" * 100_000, '{"a":' * 3000 + "1" + "}" * 3000)
NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "7",
        "64",
        "1.5",
        "-0.0",
        "1e-300",
        "1e308",
        "-1e308",
        "1e400",
        "NaN",
        "Infinity",
        "-Infinity",
    ),
    *map(str, (2**31, -(2**31), 2**53 + 1, 2**63, 2**64, 2**70, 10**6, 10**12)),
    *("1" + "0" * 400, "1" + "0" * 5000),
)
TEXTS = (
    *(
        '""',
        '"x"',
        '"5"',
        '"nan"',
        '"none"',
        '"auto"',
        r'"\u001b[2J\u009b31m\u202e"',
        r'"\ud800"',
        r'"\u0000"',
        '"a\\nb"',
    ),
    *('"../../x"', '"/etc/passwd"', '"x.py:Env"', '"module:Name"', '"CartPole-v1"', '"' + "x" * 100_000 + '"'),
)
OTHERS = (
    *("null", "true", "false", "[]", "{}", "[[]]", "[null]", "[0, 0]", "[1e308]", "{}", '{"a": 1}', str([0] * 1000)),
    *(
        '{"$tensor": "nowhere"}',
        '{"$tensor": 5}',
        '{"$tensor": "learner.optimizer.first"}',
        '{"$tensor": "globals.torch"}',
    ),
)
RUN_FILES = (
    *(
        "config.toml",
        "manifest.json",
        "status.json",
        "result.json",
        "metrics.jsonl",
        "timings.jsonl",
        "log.txt",
        ".lock",
    ),
    *("tracker-wandb.json", "checkpoints/LATEST", "checkpoints/BEST"),
)
CHECKPOINT_FILES = (MANIFEST, "policy.json", "state.json", "policy.safetensors", "state.safetensors")
WEIGHTS = {  # how often each file is chosen
    "config.toml": 5, "manifest.json": 3, "status.json": 2, "metrics.jsonl": 2, MANIFEST: 3, "policy.json": 5,
    "state.json": 8, "policy.safetensors": 4, "state.safetensors": 5,
}  # fmt: skip


def mutate(run: Path, rng: Random) -> str:
    """Change one file of the run; says which and how."""
    names = [*RUN_FILES, *CHECKPOINT_FILES]
    name = rng.choices(names, [WEIGHTS.get(name, 1) for name in names])[0]
    if name in RUN_FILES:
        return f"{name}: {_change(run / name, rng)}"
    latest = run / "checkpoints" / (run / "checkpoints" / "LATEST").read_text().strip()
    if rng.random() < 0.7:  # then there is no older one to fall back on
        for folder in (run / "checkpoints").iterdir():
            if folder.is_dir() and folder != latest:
                shutil.rmtree(folder)
    done = _change(latest / name, rng)
    forged = rng.random() < 0.85 and _sign(latest, name)
    return f"{name}: {done}{', hashed anew' if forged else ''}"


def mutate_episodes(run: Path, rng: Random) -> str:
    """The same for the log of episodes, which the runs of the first version do not have. (Apart, so that the numbers of
    older changes stay the same.)"""
    rows = [(64 * n, 9.0 + n, 9 + n, n, n % 4, 0.5 * n) for n in range(8)]
    path = run / "episodes.csv"
    path.write_bytes(header([]) + b"".join(",".join(map(str, row)).encode() + b"\n" for row in rows))
    return f"episodes.csv: {_change(path, rng)}"


def _change(path: Path, rng: Random) -> str:
    if rng.random() < 0.03:
        return _other_kind(path, rng)
    if not path.exists():
        path.write_bytes(b'{"id": "x", "step": 5}' if path.suffix == ".json" else b"1024\n")
    data = path.read_bytes()
    ways: list[Any] = [_bytes] if rng.random() < 0.3 else []
    if not ways:
        by_suffix: dict[str, list[Any]] = {
            ".json": [_json, _json, _json, _numbers],
            ".jsonl": [_json_line, _json_line, _numbers],
            ".toml": [_toml, _toml, _toml, _numbers],
            ".safetensors": [_header, _elements, _elements, _names],
        }
        ways = by_suffix.get(path.suffix, [_bytes, _numbers])
    way = rng.choice(ways)
    changed, what = way(data, rng)
    path.write_bytes(changed)
    return f"{way.__name__.strip('_')} {what}"[:200]


def _sign(folder: Path, changed: str) -> bool:
    """Adjust the manifest to the files, as a forger would; returns whether that was possible."""
    path = folder / changed
    if not path.is_file() or path.stat().st_size > 2**30:
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if changed != MANIFEST:
            data = path.read_bytes()
            manifest["files"][changed] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest["seal"] = seal(manifest)
        (folder / MANIFEST).write_text(json.dumps(manifest))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return True


def _other_kind(path: Path, rng: Random) -> str:
    """Replace it by something that is not a regular file, or by an endless one."""
    path.unlink(missing_ok=True)
    kind = rng.choice(["gone", "folder", "pipe", "loop", "endless", "sparse"])
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.truncate(2**40)
    return kind


def _bytes(data: bytes, rng: Random) -> tuple[bytes, str]:
    raw = bytearray(data)
    at, size = rng.randrange(len(raw) + 1), rng.choice([1, 1, 2, 8, 100])
    what = rng.choice(["flip", "flip", "cut", "drop", "zero", "insert", "repeat", "empty", "utf-16", "bom", "ascii"])
    if what == "flip" and raw:
        for _ in range(size):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif what == "cut":
        del raw[at:]
    elif what == "drop":
        del raw[at : at + size]
    elif what == "zero":
        raw[at : at + size] = bytes(len(raw[at : at + size]))
    elif what == "insert":
        raw[at:at] = rng.randbytes(size)
    elif what == "repeat":
        raw[at:at] = raw[at : at + size] * rng.choice([1, 1000])
    elif what == "empty":
        raw.clear()
    elif what == "utf-16":
        raw = bytearray(data.decode("latin-1").encode("utf-16"))
    elif what == "bom":
        raw[:0] = b"\xef\xbb\xbf"
    elif what == "ascii" and raw:
        raw[rng.randrange(len(raw))] = rng.choice(b'\0\n\r\t"\\[]{},:-+.eE019\x1b\x7f')
    return bytes(raw), f"{what} {size} at {at}"


def _numbers(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Replace a number in a text by another one."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", data))
    if not found:
        return _bytes(data, rng)
    match, wild = rng.choice(found), rng.choice(NUMBERS)
    return data[: match.start()] + wild.encode() + data[match.end() :], f"{match[0].decode()} -> {wild[:30]}"


def _wild(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NUMBERS)
    return rng.choice(TEXTS if kind < 0.7 else OTHERS if kind < 0.95 else DEEP)


def _places(tree: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [way, *(place for key, value in items for place in _places(value, (*way, key)))]


def _json(data: bytes, rng: Random) -> tuple[bytes, str]:
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(data, rng)
    tree, what, wild = _tree(tree, rng)
    text = json.dumps(tree)
    return text.replace(f'"{HERE}"', wild).encode(), what


def _json_line(data: bytes, rng: Random) -> tuple[bytes, str]:
    lines = data.splitlines(keepends=True)
    if not lines:
        return _bytes(data, rng)
    index = rng.randrange(len(lines))
    changed, what = _json(lines[index], rng)
    lines[index] = changed + b"\n"
    return b"".join(lines), f"line {index} {what}"


def _tree(tree: Any, rng: Random) -> tuple[Any, str, str]:
    """(the changed tree, a description, the text to put in place of HERE)."""
    wild, places = _wild(rng), _places(tree)
    way = rng.choice(places)
    if not way:
        return HERE, f"everything -> {wild[:40]}", wild
    parent = tree
    for key in way[:-1]:
        parent = parent[key]
    last, where = way[-1], ".".join(map(str, way))
    what = rng.choices(["put", "delete", "rename", "twice", "swap", "wrap", "repeat"], [60, 10, 4, 4, 10, 4, 8])[0]
    if what == "delete":
        del parent[last]
    elif what == "rename" and isinstance(parent, dict):
        parent[rng.choice(["", "x", "\x1b", last + " "])] = parent.pop(last)
    elif what == "twice" and isinstance(parent, dict):
        parent[HERE] = 0
        return tree, f"{where} twice", f"{json.dumps(last)}: {wild}, {json.dumps('and ' + last)}"
    elif what == "swap":
        other = tree
        for key in rng.choice(places):
            other = other[key]
        parent[last] = json.loads(json.dumps(other))
    elif what == "wrap":
        parent[last] = rng.choice([[parent[last]], {"x": parent[last]}, [parent[last]] * 3])
    elif what == "repeat" and isinstance(parent[last], list):
        parent[last] = parent[last] * rng.choice([0, 2, 300])
    else:
        parent[last], what = HERE, f"{wild[:40]} in"
    return tree, f"{what} {where}", wild


def _toml(data: bytes, rng: Random) -> tuple[bytes, str]:
    lines = data.decode(errors="replace").splitlines()
    if not lines:
        return _bytes(data, rng)
    index = rng.randrange(len(lines))
    key = lines[index].partition(" = ")[0]
    values = (*NUMBERS, *TEXTS, "[]", "[[1]]", "{}", "{a = 1}", "1979-05-27", "true", "false", "nan", "-inf", "0x10")
    more = ('["x"]', "[1, 2]", "[64]", "['RecordVideo{}']", "'{}'", """'{"a": 1}'""", "[" * 5000, "'''a\nb'''", "''")
    wild = rng.choice(values + more)
    what = rng.choices(["put", "delete", "twice", "unknown"], [80, 8, 6, 6])[0]
    if what == "delete":
        del lines[index]
    elif what == "twice":
        lines.append(lines[index])
    else:
        lines[index] = f"{key + '_' if what == 'unknown' else key} = {wild}"
    return "\n".join(lines).encode(errors="replace"), f"{what} {key} {wild[:30]}"


def _header(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Change the header of a safetensors file: eight bytes of length, JSON, then the numbers."""
    if len(data) < 8 or rng.random() < 0.1:
        return struct.pack("<Q", rng.choice([0, 1, 2**20, 2**40, 2**63, 2**64 - 1])) + data[8:], "length"
    size = struct.unpack("<Q", data[:8])[0]
    changed, what = _json(data[8 : 8 + size], rng)
    return struct.pack("<Q", len(changed)) + changed + data[8 + size :], what


def _tensors(data: bytes) -> tuple[int, dict[str, Any]]:
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    return 8 + size, {name: facts for name, facts in header.items() if name != "__metadata__"}


def _elements(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Replace some numbers of one tensor by odd ones."""
    start, tensors = _tensors(data)
    name = rng.choice(sorted(tensors))
    facts = tensors[name]
    begin, end = (start + offset for offset in facts["data_offsets"])
    codes = {"F32": "f", "F64": "d", "I64": "q", "U8": "B", "BOOL": "B"}
    code = codes.get(facts["dtype"], "B")
    width = struct.calcsize(code)
    odd: list[Any] = [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e30, -1e30, 1e-45]
    if code not in "fd":
        odd = [0, 1, 2, 255] if code == "B" else [0, -1, 1, 625, 2**31, 2**40, 2**62, -(2**63)]
    value, count = rng.choice(odd), (end - begin) // width
    if not count:
        return _bytes(data, rng)
    raw = bytearray(data)
    which = range(count) if rng.random() < 0.2 else [rng.randrange(count) for _ in range(rng.choice([1, 1, 5]))]
    for index in which:
        struct.pack_into(f"<{code}", raw, begin + index * width, value)
    return bytes(raw), f"{name} {value}"


def _names(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Swap the names of two tensors, or change the dtype or shape of one to another of the same size."""
    start, tensors = _tensors(data)
    one, other = rng.choice(sorted(tensors)), rng.choice(sorted(tensors))
    what = rng.choice(["swap", "type", "shape"])
    if what == "swap":
        tensors[one], tensors[other] = tensors[other], tensors[one]
    elif what == "type":
        same = {
            "F32": ("I32", "U32"),
            "F64": ("I64", "U64", "C64"),
            "I64": ("F64", "U64"),
            "U8": ("I8", "BOOL", "F8_E4M3"),
        }
        tensors[one]["dtype"] = rng.choice(same.get(tensors[one]["dtype"], ("U8",)))
    else:
        size = math.prod(tensors[one]["shape"])
        tensors[one]["shape"] = rng.choice([[size], [1, size], [size, 1], [1] * 70 + [size], [0, 5]])
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data[start:], f"{what} {one} {other}"
