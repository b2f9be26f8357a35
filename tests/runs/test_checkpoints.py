"""A checkpoint is whole or not there, whatever happens while it is written or afterwards."""

import json
import os
import shutil

import pytest

from surefoot.errors import CheckpointError
from surefoot.runs import checkpoints
from surefoot.runs.checkpoints import find_checkpoint, read_verified, write_checkpoint


def files(mark):
    return {"policy.safetensors": mark * 100, "state.json": b'{"mark": "' + mark + b'"}'}


@pytest.fixture
def root(tmp_path):
    write_checkpoint(tmp_path, 100, files(b"a"), {"algo": "ppo"})
    return tmp_path


def test_what_was_written_is_read_and_is_the_latest(root):
    write_checkpoint(root, 200, files(b"b"), {"algo": "ppo"})
    folder, notes = find_checkpoint(root)
    assert (folder.name, notes) == ("200", [])
    manifest, found = read_verified(folder)
    assert found == files(b"b")
    assert (manifest["step"], manifest["algo"]) == (200, "ppo")
    assert find_checkpoint(root, "100")[0].name == "100"


class Killed(BaseException):
    """Stands for kill −9: nothing of ours runs after it."""


OPERATIONS = [(os, "fsync"), (os, "replace"), (os, "open"), (os, "mkdir"), (shutil, "rmtree")]


def kill_at(monkeypatch, number):
    """Raise at the `number`-th call that touches the disk, before it (even) or after it (odd)."""
    count = iter(range(10_000))

    def wrap(real):
        def call(*args, **kwargs):
            now = next(count)
            if now * 2 == number:
                raise Killed
            result = real(*args, **kwargs)
            if now * 2 + 1 == number:
                raise Killed
            return result

        return call

    for module, name in OPERATIONS:
        monkeypatch.setattr(module, name, wrap(getattr(module, name)))


def test_a_kill_at_any_point_of_a_save_leaves_a_checkpoint_that_verifies(tmp_path):
    survived = set()
    for number in range(200):
        root = tmp_path / str(number)
        root.mkdir()
        for step in (100, 200, 300):
            write_checkpoint(root, step, files(b"a"), {})
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, number)
            try:
                write_checkpoint(root, 400, files(b"b"), {})
                finished = True
            except Killed:
                finished = False
        folder, _ = find_checkpoint(root)
        _, found = read_verified(folder)
        assert found == (files(b"b") if folder.name == "400" else files(b"a"))
        survived.add(folder.name)
        write_checkpoint(root, 500, files(b"c"), {})
        assert find_checkpoint(root)[0].name == "500"
        assert not list(root.glob(".tmp-*"))
        if finished:
            break
    assert finished, "the writer has more steps than the test kills it at"
    assert survived == {"300", "400"}


def test_only_the_newest_three_are_kept(root):
    for step in (200, 300, 400, 500):
        write_checkpoint(root, step, files(b"b"), {})
    assert sorted(p.name for p in root.iterdir() if p.is_dir()) == ["300", "400", "500"]


@pytest.mark.parametrize("name", ["policy.safetensors", "state.json"])
@pytest.mark.parametrize("where", [0, -1])
def test_one_flipped_bit_is_found_and_the_one_before_serves(root, name, where):
    write_checkpoint(root, 200, files(b"b"), {})
    file = root / "200" / name
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)
    folder, notes = find_checkpoint(root)
    assert folder.name == "100"
    assert len(notes) == 1
    assert f"200/{name} is damaged" in notes[0]
    with pytest.raises(CheckpointError, match="is damaged"):
        find_checkpoint(root, "200")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "policy.safetensors").write_bytes(b"short"), "has 5 bytes instead of 100"),
        (lambda f: (f / "policy.safetensors").unlink(), "cannot be read"),
        (lambda f: (f / "MANIFEST.json").unlink(), "has no MANIFEST.json"),
        (lambda f: (f / "MANIFEST.json").write_text("{"), "is damaged"),
        (lambda f: (f / "MANIFEST.json").write_text("[]"), "holds no JSON object"),
        (lambda f: (f / "MANIFEST.json").write_text("{}"), "has schema None"),
        (lambda f: (f / "MANIFEST.json").write_text(json.dumps({"schema": 99})), "has schema 99"),
    ],
)
def test_every_kind_of_damage_has_its_own_words(root, harm, message):
    harm(root / "100")
    with pytest.raises(CheckpointError, match=message):
        find_checkpoint(root)


def test_checkpoints_of_two_steps_swapped_are_found_out(root):
    write_checkpoint(root, 200, files(b"b"), {})
    os.replace(root / "100", root / "x")
    os.replace(root / "200", root / "100")
    os.replace(root / "x", root / "200")
    with pytest.raises(CheckpointError, match="holds the checkpoint of step 200"):
        find_checkpoint(root)


def test_files_of_two_steps_swapped_are_found_out(root):
    write_checkpoint(root, 200, files(b"b"), {})
    shutil.copy(root / "100" / "policy.safetensors", root / "200" / "policy.safetensors")
    assert find_checkpoint(root)[0].name == "100"


def test_a_latest_that_points_nowhere_is_passed_over(root):
    (root / "LATEST").write_text("900\n")
    folder, notes = find_checkpoint(root)
    assert folder.name == "100"
    assert "900 has no MANIFEST.json" in notes[0]
    (root / "LATEST").unlink()
    assert find_checkpoint(root)[0].name == "100"


def test_none_at_all_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint '7' in .* \(there are: none; or latest, best\)"):
        find_checkpoint(tmp_path, "7")


def test_the_same_step_again_sets_the_older_one_aside(root):
    write_checkpoint(root, 100, files(b"b"), {})
    assert read_verified(root / "100")[1] == files(b"b")
    assert read_verified(root / "aside-100-1")[1] == files(b"a")


def test_schema_is_written(root):
    assert json.loads((root / "100" / "MANIFEST.json").read_text())["schema"] == checkpoints.SCHEMA


def test_the_best_is_kept_however_old_it_gets(root):
    write_checkpoint(root, 200, files(b"b"), {}, best=True)
    for step in (300, 400, 500, 600):
        write_checkpoint(root, step, files(b"c"), {})
    assert sorted(p.name for p in root.iterdir() if p.is_dir()) == ["200", "400", "500", "600"]
    assert find_checkpoint(root, "best")[0].name == "200"
    write_checkpoint(root, 700, files(b"d"), {}, best=True)
    assert find_checkpoint(root, "best")[0].name == "700"
    assert not (root / "200").exists()


def test_a_damaged_best_or_step_is_refused_and_nothing_else_serves(root):
    write_checkpoint(root, 200, files(b"b"), {}, best=True)
    (root / "200" / "state.json").write_bytes(b"{}")
    for which in ("best", "200"):
        with pytest.raises(CheckpointError, match=r"state\.json has 2 bytes"):
            find_checkpoint(root, which)
    assert find_checkpoint(root)[0].name == "100"
    with pytest.raises(CheckpointError, match=r"state\.json has 2 bytes"):
        find_checkpoint(root, strict=True)


def test_no_best_is_said(root):
    with pytest.raises(CheckpointError, match=r"no best checkpoint .*--eval-every"):
        find_checkpoint(root, "best")


@pytest.mark.parametrize("text", ["", "../100", "/etc", "100/..", "latest", "\x00"])
def test_a_latest_that_holds_no_step_is_not_followed(root, text):
    (root / "LATEST").write_text(text)
    assert find_checkpoint(root)[0] == root / "100"


@pytest.mark.parametrize("entry", ["../secret", "/etc/passwd", "a/b", "", ".."])
def test_a_manifest_may_not_point_out_of_its_directory(root, entry):
    manifest = json.loads((root / "100" / "MANIFEST.json").read_text())
    manifest["files"][entry] = {"bytes": 1, "sha256": "0"}
    manifest["seal"] = checkpoints.seal(manifest)
    (root / "100" / "MANIFEST.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="is not a file name"):
        find_checkpoint(root, "100")


def test_a_newer_schema_says_what_to_do(root):
    (root / "100" / "MANIFEST.json").write_text(json.dumps({"schema": checkpoints.SCHEMA + 1}))
    with pytest.raises(CheckpointError, match="a newer surefoot wrote it"):
        find_checkpoint(root, "100")


class FullDisk:
    """A disk on which so many checkpoints fit."""

    def __init__(self, monkeypatch, root, room):
        self.root, self.room, self.real = root, room, checkpoints.write_all_durable
        monkeypatch.setattr(checkpoints, "write_all_durable", self.write)

    def write(self, whole):
        used = sum(1 for p in self.root.glob("*/MANIFEST.json"))
        if used >= self.room:
            path, data = next(iter(whole.items()))
            path.write_bytes(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        self.real(whole)


def test_on_a_full_disk_the_spare_checkpoints_make_room(root, monkeypatch):
    write_checkpoint(root, 200, files(b"b"), {}, best=True)
    write_checkpoint(root, 300, files(b"c"), {})
    FullDisk(monkeypatch, root, 3)
    write_checkpoint(root, 400, files(b"d"), {})
    assert sorted(p.name for p in root.iterdir() if p.is_dir()) == ["200", "300", "400"]


def test_a_disk_that_stays_full_names_the_bytes_and_leaves_what_was_there(root, monkeypatch):
    FullDisk(monkeypatch, root, 1)
    with pytest.raises(OSError, match=r"No space left on device; [\d,]+ bytes are needed, [\d,]+ are free"):
        write_checkpoint(root, 200, files(b"b"), {})
    assert sorted(p.name for p in root.iterdir()) == ["100", "LATEST"]
    assert find_checkpoint(root)[0].name == "100"


def test_spares_are_not_given_up_for_a_latest_that_is_damaged(root, monkeypatch):
    write_checkpoint(root, 200, files(b"b"), {})
    (root / "200" / "state.json").write_bytes(b"{}")
    FullDisk(monkeypatch, root, 2)
    with pytest.raises(OSError, match="No space"):
        write_checkpoint(root, 300, files(b"c"), {})
    assert find_checkpoint(root)[0].name == "100"
