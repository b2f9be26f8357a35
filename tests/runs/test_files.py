import json
import os

import pytest

from surefoot.errors import CheckpointError
from surefoot.runs.files import JsonLines, read_json, read_json_lines, write_atomic, write_json


@pytest.mark.parametrize("data", ["größe\n", b"\x00\xff", ""])
def test_write_atomic_writes_texts_and_bytes(tmp_path, data):
    file = tmp_path / "file"
    write_atomic(file, data)
    assert file.read_bytes() == (data if isinstance(data, bytes) else data.encode())
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fails):
    file = tmp_path / "file"
    write_atomic(file, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, "new")
    monkeypatch.undo()
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_reader_sees_the_old_file_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    file, seen = tmp_path / "file", []
    write_atomic(file, "old")
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(file.read_text()))
    write_atomic(file, "new")
    assert seen == ["old", "new"]  # the file, then its directory
    assert file.read_text() == "new"


def test_a_value_that_is_no_json_leaves_the_old_file(tmp_path):
    file = tmp_path / "file.json"
    write_json(file, {"a": 1})
    with pytest.raises(TypeError):
        write_json(file, {"a": object()})
    assert read_json(file) == {"a": 1}


def test_json_round_trip_with_sorted_keys(tmp_path):
    file = tmp_path / "file.json"
    write_json(file, {"b": [1.5, None], "a": "ünï"})
    assert read_json(file) == {"a": "ünï", "b": [1.5, None]}
    assert file.read_text().index('"a"') < file.read_text().index('"b"')


def test_json_lines_are_readable_while_they_are_written(tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    for step in range(3):
        assert log.write({"step": step, "loss": 0.1})
        assert [row["step"] for row in read_json_lines(tmp_path / "log.jsonl")] == list(range(step + 1))
    log.close()


def test_json_lines_go_on_where_they_ended(tmp_path):
    for step in range(2):
        log = JsonLines(tmp_path / "log.jsonl")
        log.write({"step": step})
        log.close()
    assert list(read_json_lines(tmp_path / "log.jsonl")) == [{"step": 0}, {"step": 1}]


@pytest.mark.parametrize("cut", range(1, 15))
def test_a_torn_last_line_is_left_out_wherever_it_was_torn(tmp_path, cut):
    file = tmp_path / "log.jsonl"
    whole, last = '{"step": 0}\n', '{"step": 1234}\n'
    file.write_text(whole + last[:-cut])
    assert list(read_json_lines(file)) == [{"step": 0}]


def test_a_missing_log_is_empty(tmp_path):
    assert list(read_json_lines(tmp_path / "none.jsonl")) == []


def test_a_damaged_line_within_the_log_is_an_error(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(CheckpointError, match="is damaged in line 2"):
        list(read_json_lines(file))


def test_a_log_that_goes_on_after_a_torn_line_can_be_read(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"step": 0}\n{"st')
    log = JsonLines(file)
    log.write({"step": 1})
    log.close()
    assert list(read_json_lines(file)) == [{"step": 0}, {"step": 1}]


class Disk:
    """Stands for a disk with so many bytes left: os.write takes what fits and then refuses."""

    def __init__(self, monkeypatch, free):
        self.free, self.real = free, os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, handle, data):
        if data and not self.free:
            raise OSError(28, "No space left on device")
        taken = min(len(data), self.free)
        self.free -= taken
        return self.real(handle, data[:taken])


@pytest.mark.parametrize("free", range(0, 40, 3))
def test_what_a_full_disk_refuses_waits_and_no_record_is_ever_torn(tmp_path, monkeypatch, free):
    rows = [{"step": step} for step in range(5)]
    log = JsonLines(tmp_path / "log.jsonl")
    disk = Disk(monkeypatch, free)
    written = [log.write(row) for row in rows[:4]]
    assert not all(written)
    assert "No space" in str(log.error)
    found = list(read_json_lines(log.path))
    assert found == rows[: len(found)]
    assert log.path.read_bytes() in (b"", b"".join(json.dumps(row).encode() + b"\n" for row in found))
    disk.free = 1000
    assert log.write(rows[4])
    assert (log.pending, log.error) == ([], None)
    log.close()
    assert list(read_json_lines(log.path)) == rows


def test_rows_that_were_refused_can_be_handed_to_the_next_writer(tmp_path, monkeypatch):
    log = JsonLines(tmp_path / "log.jsonl")
    log.write({"step": 0})
    disk = Disk(monkeypatch, 3)
    log.write({"step": 1})
    waiting = list(log.pending)
    disk.free = 1000
    other = JsonLines(tmp_path / "log.jsonl", waiting)
    other.write({"step": 2})
    assert [row["step"] for row in read_json_lines(other.path)] == [0, 1, 2]
    other.close()


def test_a_device_is_written_to_and_never_replaced(tmp_path):
    import stat

    from surefoot.runs.files import write_output

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_output(pipe, "a,b\n")
    assert os.read(reader, 100) == b"a,b\n"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_output(tmp_path / "plain", "x")
    assert (tmp_path / "plain").read_text(encoding="utf-8") == "x"
