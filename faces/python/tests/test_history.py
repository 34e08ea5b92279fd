"""Branches and snapshots as a whole: what each call does, and what it does with wrong arguments."""

import errno
import io
import os
import pickle
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cairnfs
from cairnfs import Volume


def test_diff_tells_each_file_that_differs(volume: Volume) -> None:
    volume.write_many({"gone": b"1", "kept": b"2", "old name": b"3", "text": b"before"})
    volume.snapshot("monday")
    with volume.branch("trial") as trial:
        trial.unlink("gone")
        trial.rename("old name", "new name")
        trial.mkdir("dir")
        trial.write_bytes(b"caf\xe9", b"")
        trial.write_bytes("text", b"after that")
        trial.chmod("text", 0o600)
        trial.setxattr("text", "user.a", b"b")
    volume.write_bytes("only in main", b"4")

    changes = volume.diff("monday", "trial")
    assert [(change.status, change.path) for change in changes] == [
        ("added", "caf\udce9"),
        ("added", "dir"),
        ("removed", "gone"),
        ("renamed", "new name"),
        ("changed", "text"),
    ]
    _, directory, _, renamed, text = changes
    assert directory.mode == stat.S_IFDIR
    assert (renamed.old_paths, renamed.new_paths) == (["old name"], ["new name"])
    assert (text.size, text.written, text.contents) == (10, 10, [(0, 10)])
    assert {change.name: (change.old, change.new) for change in text.attributes}["mode"] == (
        0o644,
        0o600,
    )
    assert text.xattrs == [cairnfs.XattrChange("user.a", "added")]
    assert volume.diff("main", "trial", since_fork=True) == changes
    assert len(volume.diff("main", "trial")) == 6
    assert volume.diff("trial", "trial") == []
    with pytest.raises(FileNotFoundError, match="trial"):
        volume.diff("main", "missing")


def test_publish_makes_a_branch_the_main_one(volume: Volume) -> None:
    volume.write_bytes("f", b"before")
    with volume.branch("trial") as trial:
        trial.write_bytes("f", b"trial")
    published = volume.publish("trial")
    assert not published.merged and published.conflicts == []
    assert published.kept is not None and published.kept in volume.snapshots()
    with pytest.raises(OSError) as error:
        volume.write_bytes("f", b"too late")
    assert error.value.errno == errno.ESTALE
    with volume.open_branch("main") as main:
        assert main.read_bytes("f") == b"trial"

    kept = volume.restore(published.kept)
    assert volume.open_branch("main").read_bytes("f") == b"before"
    volume.restore(kept, "main", ["f"])
    assert volume.open_branch("main").read_bytes("f") == b"trial"
    with pytest.raises(FileNotFoundError):
        volume.restore(kept, paths=["missing"])
    with pytest.raises(TypeError):
        volume.restore(kept, paths="f")


def test_conflicts_are_raised_and_a_side_can_be_taken(volume: Volume) -> None:
    volume.write_many({"f": b"before", "g": b"before"})
    with volume.branch("trial") as trial:
        trial.write_many({"f": b"theirs", "h": b"new"})
    volume.write_many({"f": b"ours", "g": b"ours"})
    dry = volume.publish("trial", dry_run=True)
    assert dry.kept is None and not dry.merged
    assert cairnfs.Conflict("f", "both changed the contents") in dry.conflicts
    with pytest.raises(cairnfs.ConflictError, match="both changed the contents") as error:
        volume.publish("trial")
    assert error.value.errno == errno.ECANCELED
    assert error.value.conflicts == dry.conflicts
    assert pickle.loads(pickle.dumps(error.value)).conflicts == dry.conflicts
    assert volume.read_bytes("f") == b"ours" and volume.branches() == ["main", "trial"]
    published = volume.publish("trial", theirs=["f"])
    assert published.merged and published.kept is not None
    main = volume.open_branch("main")
    assert main.read_many(["f", "g", "h"]) == [b"theirs", b"ours", b"new"]
    for call in (
        lambda: volume.publish("main"),
        lambda: volume.publish("missing"),
        lambda: volume.publish("main", "missing"),
    ):
        with pytest.raises(OSError):
            call()
    for wrong in ("f", [5], 5):
        with pytest.raises(TypeError):
            volume.publish("main", ours=wrong)  # type: ignore[arg-type]


def test_roots_have_parents_and_times(volume: Volume) -> None:
    volume.write_bytes("f", bytes(100_000))
    volume.snapshot("monday")
    volume.unlink("f")
    volume.snapshot("tuesday")
    main, monday, tuesday = volume.roots()
    assert (main.name, main.parent, main.writable) == ("main", tuesday.id, True)
    assert (tuesday.parent, monday.parent, monday.writable) == (monday.id, None, False)
    assert 0 < monday.created_ns <= tuesday.created_ns
    assert not any(root.being_dropped for root in volume.roots())
    assert volume.find_root("main@monday") == monday
    for reference in ("main@friday", "", "main@", "a\0b", "x" * 100_000, "main@-9999999999w"):
        with pytest.raises(OSError):
            volume.find_root(reference)
    with pytest.raises(TypeError):
        volume.find_root(b"main")  # type: ignore[arg-type]


def many_files(volume: Volume) -> None:
    volume.write_many((f"{n}", bytes([n % 256]) * 4096) for n in range(500))
    volume.snapshot("monday")
    for n in range(500):
        volume.unlink(f"{n}")


def test_space_is_that_of_one_state_alone(image: Path) -> None:
    with Volume(image) as volume:
        many_files(volume)
        volume.snapshot("tuesday")
    with Volume(image) as volume:
        assert volume.space_of("monday") >= 500 * 4096 > volume.space_of("tuesday")


def test_drop_waits_until_the_space_is_free(volume: Volume) -> None:
    many_files(volume)
    opened = volume.open_branch("monday")
    with pytest.raises(OSError) as error:
        volume.drop("monday")
    assert error.value.errno == errno.EBUSY
    opened.close()
    before = volume.statvfs().f_bfree
    told: list[tuple[int, float]] = []
    volume.drop("monday", progress=lambda left, part: told.append((left, part)))
    assert volume.statvfs().f_bfree >= before + 500
    assert told and all(left >= 0 and 0 <= part <= 1 for left, part in told)
    assert not any(root.being_dropped for root in volume.roots())
    volume.drop(wait=True)
    with pytest.raises(PermissionError):
        volume.drop("main")
    with pytest.raises(FileNotFoundError):
        volume.drop("monday")


def test_progress_ends_the_waiting(volume: Volume) -> None:
    many_files(volume)
    calls = []

    def stop(left: int, part: float) -> bool:
        calls.append(left)
        return False

    volume.drop("monday", progress=stop)
    assert len(calls) == 1
    with pytest.raises(ZeroDivisionError):
        volume.drop(progress=lambda left, part: 1 / 0)
    with pytest.raises(TypeError):
        volume.drop(progress=5)  # type: ignore[arg-type]
    volume.drop(wait=True)


def stream_of(volume: Volume, snapshot: str, base: str | None = None) -> bytes:
    stream = io.BytesIO()
    volume.send(stream, snapshot, base)
    return stream.getvalue()


def test_snapshots_are_sent_and_received(volume: Volume, tmp_path: Path) -> None:
    volume.write_bytes("f", b"monday")
    volume.snapshot("monday")
    volume.write_bytes("f", b"tuesday")
    volume.snapshot("tuesday")
    with Volume.in_memory(64 << 20) as backup:
        with open(tmp_path / "stream", "wb", 0) as file:
            volume.send(file, "monday")
        with open(tmp_path / "stream", "rb") as file:
            assert backup.receive(file, "first") == "first"
        name = backup.receive(io.BytesIO(stream_of(volume, "tuesday", "monday")))
        assert backup.open_branch(name).read_bytes("f") == b"tuesday"
        assert backup.snapshots() == ["first", name]

    ends = os.pipe()
    with Volume.in_memory(64 << 20) as backup, open(ends[0], "rb") as read:
        with open(ends[1], "wb") as write:
            sender = threading.Thread(target=lambda: (volume.send(write, "monday"), write.close()))
            sender.start()
            backup.receive(read, "through a pipe")
            sender.join()
        assert backup.snapshots() == ["through a pipe"]


class Odd(io.RawIOBase):
    """A file object that does what none should, or a little at a time."""

    def __init__(self, write: Callable[[Any], Any], read: Callable[[int], Any]) -> None:
        self.write, self.read = write, read  # type: ignore[method-assign, assignment]


def fail(_: object) -> int:
    raise ZeroDivisionError


def test_file_objects_of_a_stream_may_be_slow_but_not_wrong(volume: Volume) -> None:
    volume.write_bytes("f", os.urandom(5000))
    volume.snapshot("monday")
    whole = stream_of(volume, "monday")
    slow = io.BytesIO()
    volume.send(Odd(lambda data: slow.write(data[:7]), fail), "monday")
    assert slow.getvalue() == whole
    rest = io.BytesIO(whole)
    with Volume.in_memory(64 << 20) as backup:
        backup.receive(Odd(fail, lambda size: rest.read(min(size, 7))), "slowly")
        assert backup.snapshots() == ["slowly"]

        for write, expected in (
            (fail, ZeroDivisionError),
            (lambda _: None, BlockingIOError),
            (lambda data: len(data) + 1, ValueError),
            (lambda _: "text", TypeError),
            (lambda _: -1, OverflowError),
        ):
            with pytest.raises(expected):
                volume.send(Odd(write, fail), "monday")
        for read, expected in (
            (fail, ZeroDivisionError),
            (lambda _: None, BlockingIOError),
            (lambda size: bytes(size + 1), ValueError),
            (lambda _: "text", TypeError),
            (lambda _: b"", OSError),
            (io.BytesIO(whole[:-1]).read, OSError),
            (io.BytesIO(whole + b"x").read, OSError),
            (io.BytesIO(b"no stream" * 100).read, OSError),
        ):
            with pytest.raises(expected):
                backup.receive(Odd(fail, read), "x")
        for wrong in (5, None, "path", io.StringIO()):
            with pytest.raises((TypeError, AttributeError)):
                backup.receive(wrong, "x")  # type: ignore[arg-type]
            with pytest.raises((TypeError, AttributeError)):
                volume.send(wrong, "monday")  # type: ignore[arg-type]
        assert backup.snapshots() == ["slowly"]
    with pytest.raises(OSError):
        volume.send(io.BytesIO(), "main")
    with pytest.raises(FileNotFoundError):
        volume.send(io.BytesIO(), "missing")


def test_closed_volume_raises_value_errors(volume: Volume) -> None:
    volume.snapshot("monday")
    volume.close()
    for call in (
        volume.roots,
        lambda: volume.find_root("main"),
        lambda: volume.space_of("main"),
        lambda: volume.diff("monday", "main"),
        lambda: volume.publish("main"),
        lambda: volume.restore("monday"),
        lambda: volume.drop("monday"),
        lambda: volume.drop(wait=True),
        lambda: volume.send(io.BytesIO(), "monday"),
        lambda: volume.receive(io.BytesIO()),
    ):
        with pytest.raises(ValueError, match="closed volume"):
            call()
