"""A run as one file: what is packed comes back, and nothing in a zip from a stranger is trusted."""

import hashlib
import io
import json
import os
import shlex
import shutil
import stat
import zipfile
from pathlib import Path

import pytest

import surefoot
from surefoot.cli.main import main
from surefoot.errors import BusyError, CheckpointError, SurefootError, UsageError
from surefoot.runs import RunDirectory
from surefoot.runs.pack import CONTENTS, pack, unpack

RUNS = Path(__file__).parent.parent / "fixtures" / "runs-0.1.0"


@pytest.fixture
def run(tmp_path):
    shutil.copytree(RUNS / "ppo-cartpole", tmp_path / "mine")
    return RunDirectory(tmp_path / "mine")


@pytest.fixture
def packed(run):
    pack(run, Path("run.zip"))
    return dict(contents(Path("run.zip")))


def contents(file):
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            yield name, archive.read(name)


def write(files, listed=None, how=None):
    """A zip with these files, and a list of contents that fits them unless another is given."""
    own = {name: data for name, data in files.items() if name != CONTENTS}
    if listed is None:
        listed = [[name, len(data), hashlib.sha256(data).hexdigest()] for name, data in own.items()]
    facts = {"format": 1, "files": listed, **(how or {})}
    with zipfile.ZipFile("evil.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(CONTENTS, json.dumps(facts))
        for name, data in own.items():
            archive.writestr(name, data)
    return Path("evil.zip")


def refused(file, message):
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises((CheckpointError, UsageError), match=message):
        unpack(file, Path("out/new"))
    Path("out").rmdir() if Path("out").exists() else None
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_run_survives(run):
    names = pack(run, Path("run.zip"))
    assert names[:2] == ["config.toml", "manifest.json"]
    assert "checkpoints/1536/policy.safetensors" in names
    back = unpack(Path("run.zip"), Path("runs/back"))
    for name in names:
        assert (back.path / name).read_bytes() == (run.path / name).read_bytes()
    assert surefoot.load(back).predict([0.0] * 4)[0] == surefoot.load(run).predict([0.0] * 4)[0]


def test_the_same_run_gives_the_same_bytes(run):
    pack(run, Path("a.zip"))
    pack(run, Path("b.zip"))
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()


def test_only_the_latest_and_the_best_checkpoint_are_packed(run):
    steps = {name.split("/")[1] for name in pack(run, Path("run.zip")) if name.count("/") == 2}
    wanted = {(run.checkpoints / pointer).read_text().strip() for pointer in ("LATEST", "BEST")}
    assert steps == wanted


def test_the_commands(run, capsys):
    assert main(["pack", str(run.path)]) == 0
    assert "mine.zip: " in capsys.readouterr().out
    assert main(["unpack", "mine.zip"]) == 0
    assert "runs/unpacked/mine\nTo look at it: surefoot eval runs/unpacked/mine" in capsys.readouterr().out
    assert main(["unpack", "mine.zip"]) == 2
    assert "exists already; choose another --out" in capsys.readouterr().err
    assert main(["unpack", "nothing.zip"]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["list", "runs"]) == 0
    assert main(["unpack", "mine.zip", "--out=-it's here"]) == 0
    words = shlex.split(capsys.readouterr().out.rpartition("surefoot ")[2])
    assert words == ["eval", "./-it's here"]
    assert main(["pack", str(run.path), "--out", "."]) == 2
    assert "cannot write .: Is a directory; choose another --out" in capsys.readouterr().err


def test_a_pipe_is_not_waited_for(capsys):
    os.mkfifo("pipe.zip")
    for words in (["unpack", "pipe.zip"], ["import-sb3", "pipe.zip"]):
        assert main(words) == 2
        assert "not a plain file" in capsys.readouterr().err
    assert not list(Path("runs").rglob("*"))


def test_a_run_in_progress_is_not_packed(run):
    run.lock()
    try:
        with pytest.raises(BusyError, match="still being trained"):
            pack(RunDirectory(run.path), Path("run.zip"))
    finally:
        run.unlock()


def test_a_link_is_not_packed(run, tmp_path):
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    (run.path / "log.txt").unlink()
    (run.path / "log.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match="is a link"):
        pack(run, Path("run.zip"))


NAMES = [
    "../evil",
    "/tmp/evil",
    "checkpoints/../../evil",
    "checkpoints/1536/../../../evil",
    "..\\evil",
    "C:\\evil",
    "evil.py",
    ".lock",
    "checkpoints/1536/evil.pkl",
    "checkpoints/²/policy.json",
    "videos/x.mp4",
    "config.toml/x",
    "./config.toml",
    "config.toml ",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_path_leads_elsewhere(packed, name):
    refused(write({**packed, name: b"x"}), "is not a file of a run")


def test_sizes_and_hashes_must_fit(packed):
    listed = json.loads(packed[CONTENTS])["files"]
    for column, value in ((1, 5), (1, 2**53), (2, "0" * 64), (1, -1), (1, "5"), (2, 5)):
        changed = [list(entry) for entry in listed]
        changed[0][column] = value
        refused(write(packed, changed), "is not a packed run|damaged|bytes")
    refused(write(packed, listed[1:]), "its files are not those")
    refused(write({name: data for name, data in packed.items() if name != "config.toml"}, listed), "are not those")


@pytest.mark.parametrize("facts", [{"format": 2}, {"format": "1"}, {"files": {}}, {"files": [["x"]]}, {"files": None}])
def test_other_formats_are_refused(packed, facts):
    refused(write(packed, how=facts), "is not a packed run")


def test_a_bomb_is_not_unpacked(packed):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(CONTENTS, b" " * 2**24)
    Path("bomb.zip").write_bytes(bomb.getvalue())
    refused(Path("bomb.zip"), "is too large")
    listed = [[n, len(d), hashlib.sha256(d).hexdigest()] for n, d in packed.items() if n != CONTENTS]
    larger = {**packed, "log.txt": b"\0" * 2**24}  # much more than what it claims
    refused(write(larger, listed), "log.txt is damaged")
    with pytest.raises(CheckpointError, match="more than the 1,000 that are allowed"):
        unpack(write(packed), Path("out/new"), largest=1000)


def test_links_and_folders_are_refused(packed):
    for kind in (stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO):
        with zipfile.ZipFile("evil.zip", "w") as archive:
            for name, data in packed.items():
                entry = zipfile.ZipInfo(name)
                entry.external_attr = ((kind if name == "log.txt" else stat.S_IFREG) | 0o777) << 16
                archive.writestr(entry, data)
        refused(Path("evil.zip"), "is a link or a folder")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_compression_is_refused(packed, method):
    with zipfile.ZipFile("evil.zip", "w", method) as archive:
        for name, data in packed.items():
            archive.writestr(name, data)
    refused(Path("evil.zip"), "compressed in a way")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_are_refused(packed):
    with zipfile.ZipFile("evil.zip", "w") as archive:
        for name, data in [*packed.items(), ("log.txt", b"other")]:
            archive.writestr(name, data)
    refused(Path("evil.zip"), "the same name")


def test_a_sound_zip_of_no_run_is_refused(packed):
    for missing in ("manifest.json", "config.toml"):
        refused(write({name: data for name, data in packed.items() if name != missing}), f"it has no {missing}")
    broken = {**packed, "checkpoints/1536/policy.json": b"{}"}  # the checkpoint's own hashes are checked too
    refused(write(broken), r"policy.json (is damaged|has 2 bytes)")


def test_every_torn_or_flipped_zip_is_one_clear_error(packed):
    whole = Path("run.zip").read_bytes()
    for end in range(0, len(whole), max(1, len(whole) // 40)):
        Path("torn.zip").write_bytes(whole[:end])
        refused(Path("torn.zip"), "torn.zip")
    for at in range(0, len(whole), max(1, len(whole) // 60)):
        Path("flipped.zip").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            unpack(Path("flipped.zip"), Path("out/new"))
        except SurefootError:
            assert not Path("out/new").exists()
        else:
            shutil.rmtree("out")
    Path("text.zip").write_text("not a zip", encoding="utf-8")
    refused(Path("text.zip"), "is not a packed run")
