"""Calls for many files, listings with metadata, sequences, snapshots."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cairnfs
from cairnfs import Volume


def test_many_files_are_written_and_read(volume: Volume) -> None:
    volume.mkdir("d")
    files = {f"d/{n}": bytes([n % 256]) * n for n in range(1000)}
    volume.write_many(files)
    assert volume.read_many(files) == list(files.values())
    volume.write_many((path, bytearray(b"new")) for path in list(files)[:10])
    assert volume.read_many([b"d/0", Path("d/9"), "d/10"]) == [b"new", b"new", files["d/10"]]


def test_batch_stops_at_the_first_error_and_names_the_file(volume: Volume) -> None:
    with pytest.raises(FileNotFoundError) as error:
        volume.write_many([("a", b"1"), ("no/b", b"2"), ("c", b"3")])
    assert error.value.filename == "no/b"
    assert volume.listdir() == ["a"]
    with pytest.raises(IsADirectoryError) as error2:
        volume.mkdir("d")
        volume.read_many(["a", "d"])
    assert error2.value.filename == "d"


def test_listing_with_stat_has_what_stat_says(volume: Volume) -> None:
    volume.write_many({f"f{n}": b"x" * n for n in range(700)})
    volume.symlink("f9", "link")
    volume.symlink("nowhere", "dangling")
    with volume.scandir(stat=True) as listing:
        entries = {entry.name: entry for entry in listing}
    assert list(entries) == volume.listdir()
    for name, entry in entries.items():
        assert entry.stat(follow_symlinks=False) == volume.lstat(name)
        assert entry.inode() == volume.lstat(name).st_ino
    assert entries["link"].stat().st_size == 9
    assert entries["link"].is_file() and not entries["link"].is_file(follow_symlinks=False)
    assert not entries["dangling"].is_file()
    with pytest.raises(FileNotFoundError) as error:
        entries["dangling"].stat()
    assert error.value.filename == "/dangling"


def test_metadata_of_a_listing_is_of_the_time_of_listing(volume: Volume) -> None:
    volume.write_bytes("f", b"old")
    with_stat = next(volume.scandir(stat=True))
    without = next(volume.scandir())
    volume.write_bytes("f", b"newer")
    assert with_stat.stat().st_size == 3
    assert without.stat().st_size == 5
    volume.unlink("f")
    assert with_stat.stat().st_size == 3
    with pytest.raises(FileNotFoundError):
        without.stat()


def test_closed_listing_ends(volume: Volume) -> None:
    volume.write_many({f"{n}": b"" for n in range(1000)})
    listing = volume.scandir()
    next(listing)
    listing.close()
    assert list(listing) == []


def test_entry_is_a_path(volume: Volume) -> None:
    volume.makedirs("a/b")
    entry = next(volume.scandir("a"))
    assert os.fspath(entry) == "a/b"
    assert volume.isdir(entry)
    assert repr(entry) == "<DirEntry 'b'>"


KILLED = """
import os, sys, signal, cairnfs
volume = cairnfs.Volume(sys.argv[1], durability_interval=None)
volume.write_many({f"{n}": b"durable" for n in range(500)})
sequence = volume.sequence()
assert not volume.is_durable(sequence)
volume.sync_through(sequence)
assert volume.is_durable(sequence)
with volume.open("synced", "wb") as file:
    file.write(b"by fsync")
    volume.fsync(file)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_sync_covers_survives_a_kill(image: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, image], check=False)
    assert run.returncode == -9
    with Volume(image) as volume:
        assert len(volume.listdir()) == 501
        assert volume.read_bytes("499") == b"durable"
        assert volume.read_bytes("synced") == b"by fsync"


def test_snapshot_shows_what_was(image: Path) -> None:
    with Volume(image) as volume:
        volume.write_bytes("f", b"before")
        volume.snapshot("monday")
        volume.write_bytes("f", b"after")
        assert volume.snapshots() == ["monday"]
        with pytest.raises(FileExistsError):
            volume.snapshot("monday")
        monday = volume.open_branch("monday")
        assert monday.read_bytes("f") == b"before" and monday.read_only
        with pytest.raises(OSError) as error:
            monday.write_bytes("f", b"")
        assert error.value.errno == errno.EROFS
    with Volume(image, "r", branch="monday") as monday:
        assert monday.read_bytes("f") == b"before"
        assert monday.branch_name == "monday"
    with pytest.raises(FileNotFoundError, match="tuesday"):
        Volume(image, "r", branch="tuesday")


def test_branch_changes_on_its_own(image: Path) -> None:
    with Volume(image, umask=0o077) as volume:
        volume.write_bytes("f", b"main")
        trial = volume.branch("trial")
        assert isinstance(trial, Volume)
        assert (trial.branch_name, volume.branch_name) == ("trial", "main")
        trial.write_bytes("f", b"trial")
        trial.mkdir("only here")
        assert trial.stat("only here").st_mode & 0o777 == 0o700
        assert volume.read_bytes("f") == b"main"
        assert volume.listdir() == ["f"]
        assert volume.stat("f").st_dev != trial.stat("f").st_dev
        assert volume.stat("f").st_dev == volume.open_branch("main").stat("f").st_dev
        trial.sync_through(volume.sequence())
        volume.rename_branch("trial", "kept")
        assert volume.branches() == ["main", "kept"]
        with pytest.raises(FileExistsError):
            volume.branch("kept")
        with pytest.raises(FileNotFoundError):
            volume.open_branch("trial")
        with pytest.raises(TypeError):
            volume.branch(b"name")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="closed volume"):
        trial.read_bytes("f")
    with Volume(image, branch="kept") as kept:
        assert kept.read_bytes("f") == b"trial"


def test_branch_keeps_the_volume_open(image: Path) -> None:
    branch = Volume(image).branch("b")
    branch.write_bytes("f", b"")
    gc.collect()
    with pytest.raises(OSError, match="open in this process"):
        Volume(image)
    branch.close()
    gc.collect()
    with Volume(image) as volume:
        assert volume.branches() == ["main", "b"]


def test_branch_is_closed_for_itself(image: Path) -> None:
    with Volume(image) as volume:
        with volume.branch("trial") as trial:
            trial.write_bytes("f", b"trial")
            file = trial.open("f", "rb", 0)
            listing = trial.scandir()
            assert not trial.closed
        assert trial.closed and not volume.closed
        for call in (
            lambda: trial.read_bytes("f"),
            lambda: trial.branch("more"),
            lambda: file.read(),
            lambda: next(listing),
        ):
            with pytest.raises(ValueError, match="closed volume"):
                call()
        trial.close()
        file.close()
        listing.close()
        assert volume.open_branch("trial").read_bytes("f") == b"trial"
        volume.write_bytes("f", b"main")
    with Volume(image, branch="trial") as trial:
        assert trial.read_bytes("f") == b"trial"
    # It was opened by itself, so its end was that of the volume.
    with Volume(image) as volume:
        assert volume.read_bytes("f") == b"main"


def test_volume_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "vol"
    with Volume(path, "a", size=64 << 20, label="photos") as volume:
        info = volume.info()
        assert (info["label"], info["size"]) == ("photos", 64 << 20)
        assert volume.name == str(path)
        assert repr(volume) == f"<cairnfs.Volume {str(path)!r}>"
        trial = volume.branch("trial")
        assert repr(trial) == f"<cairnfs.Volume {str(path)!r} branch='trial'>"
        trial.close()
        assert repr(trial) == f"<cairnfs.Volume {str(path)!r} branch='trial' closed>"
        with Volume.in_memory(64 << 20) as other:
            assert repr(other) == "<cairnfs.Volume in memory>"
            with other.branch("trial") as trial:
                assert repr(trial) == "<cairnfs.Volume in memory branch='trial'>"
        assert volume.statvfs().f_bsize == 4096
        assert volume.disk_usage().total <= 64 << 20
        assert volume.trim() >= 0
        assert not volume.read_only
    assert repr(volume).endswith("closed>")
    with Volume(path, "a") as volume:
        assert volume.info()["label"] == "photos"


def test_owner_of_new_files_can_be_given() -> None:
    with Volume.in_memory(64 << 20, owner=(12, 34)) as volume:
        volume.touch("f")
        assert (volume.stat("f").st_uid, volume.stat("f").st_gid) == (12, 34)


def test_synced_writes_are_accepted(volume: Volume) -> None:
    for sync in ("data", "all"):
        with cairnfs.FileIO(volume, sync, "w", sync=sync) as file:  # type: ignore[arg-type]
            file.write(b"durable")
            file.fdatasync()
    with pytest.raises(ValueError, match="sync"):
        cairnfs.FileIO(volume, "f", "w", sync="sometimes")  # type: ignore[arg-type]
