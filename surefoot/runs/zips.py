"""Reads zips that anyone may have made: no links, no folders, and never more bytes than the caller allows."""

from __future__ import annotations

import stat
import zipfile
import zlib

from surefoot.schema import Misfit

# What reading a zip can raise, whatever is in it.
NO_ZIP = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError)


def entries_of(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The entries by name. Two of the same name would be read differently by different programs."""
    entries = archive.infolist()
    by_name = {entry.filename: entry for entry in entries}
    if len(by_name) < len(entries):
        raise Misfit("two files in it have the same name")
    return by_name


def plain(entry: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """The entry, if it is a file that is stored or deflated."""
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG) or entry.is_dir():
        raise Misfit(f"{entry.filename!r} is a link or a folder, not a file")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others fail in ways of their own
        raise Misfit(f"{entry.filename!r} is compressed in a way that is not read here")
    return entry


def read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Its content; Misfit if that has more than `most` bytes, however well it compresses."""
    with archive.open(plain(entry)) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise Misfit(f"its {entry.filename} is too large")
    return data
