"""TensorBoard itself reads what we write."""

import struct

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from surefoot.runs.events import EventFile, crc32c


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_crc_of_the_standard_check_value():
    assert crc32c(b"123456789") == 0xE3069283


def test_scalars_come_back_with_names_and_steps(tmp_path):
    log = EventFile(tmp_path / "a")
    log.write(0, {"loss": 1.5})
    log.write(300, {"loss": -2.25, "info/größe": 1e10})
    log.write(10**12, {"loss": 0.0})
    log.close()
    assert read(tmp_path / "a") == {
        "loss": [(0, 1.5), (300, -2.25), (10**12, 0.0)],
        "info/größe": [(300, struct.unpack("f", struct.pack("f", 1e10))[0])],
    }


def test_rows_are_seen_while_the_file_is_written(tmp_path):
    log = EventFile(tmp_path)
    for step in range(1, 4):
        log.write(step, {"x": float(step)})
        assert len(read(tmp_path)["x"]) == step
    log.close()


def test_a_later_file_disowns_the_steps_after_its_start(tmp_path):
    first = EventFile(tmp_path)
    for step in (10, 20, 30):
        first.write(step, {"x": 1.0})
    first.close()
    second = EventFile(tmp_path, purge_step=21)
    second.write(30, {"x": 2.0})
    second.close()
    assert read(tmp_path) == {"x": [(10, 1.0), (20, 1.0), (30, 2.0)]}


def test_two_files_of_one_second_have_names_of_their_own(tmp_path):
    logs = [EventFile(tmp_path) for _ in range(3)]
    for log in logs:
        log.close()
    assert len({log.path for log in logs}) == len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_names_of_any_length(tmp_path, name):
    log = EventFile(tmp_path)
    log.write(1, {name: 1.0})
    log.close()
    assert read(tmp_path) == {name: [(1, 1.0)]}
