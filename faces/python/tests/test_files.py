"""File objects of a volume beside those of the host: the same calls, the same results. And the
programs of the standard library that take file objects."""

import errno
import io
import os
import pickle
import random
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cairnfs
from cairnfs import FileIO, Volume


def outcome(call: Any) -> Any:
    try:
        return call()
    except OSError as e:
        return type(e).__name__, e.errno
    except (ValueError, TypeError, OverflowError) as e:
        return type(e).__name__


def random_call(dice: random.Random) -> tuple[str, tuple[Any, ...]]:
    name = dice.choice(
        ["read", "read", "write", "write", "seek", "seek", "tell", "truncate", "readline",
         "readinto", "readlines", "readall", "flush", "writelines", "peek", "close"]
    )  # fmt: skip
    some = dice.choice([0, 1, 5, 100, 4095, 8192, 20000])
    match name:
        case "read":
            return name, dice.choice([(), (-1,), (some,), (None,)])
        case "write":
            data = dice.randbytes(some)
            return name, (dice.choice([data, bytearray(data), memoryview(data)]),)
        case "writelines":
            return name, ([dice.randbytes(3), b"\n", dice.randbytes(some)],)
        case "seek":
            return name, (dice.choice([some, some, 0, -3, -some]), dice.choice([0, 0, 1, 2, 7]))
        case "truncate":
            return name, dice.choice([(), (some,), (-1,)])
        case "readinto":
            return name, (bytearray(some),)
        case "close":
            return ("tell", ()) if dice.random() < 0.97 else (name, ())
        case _:
            return name, ()


@pytest.mark.parametrize("buffering", [0, 8192, 3])
@pytest.mark.parametrize("mode", ["rb", "r+b", "wb", "w+b", "ab", "a+b", "xb", "x+b"])
def test_random_calls_do_what_the_hosts_file_does(
    volume: Volume, tmp_path: Path, mode: str, buffering: int
) -> None:
    for seed in range(12):
        dice = random.Random(f"{mode}{buffering}{seed}")
        content = dice.randbytes(dice.choice([0, 10, 9000]))
        name = f"f{seed}"
        if "x" not in mode:
            (tmp_path / name).write_bytes(content)
            volume.write_bytes(name, content)
        with (
            open(tmp_path / name, mode, buffering) as theirs,
            volume.open(name, mode, buffering) as ours,
        ):
            for step in range(60):
                call, args = random_call(dice)
                if not hasattr(theirs, call):
                    assert not hasattr(ours, call), call
                    continue
                made = [outcome(lambda f=f: getattr(f, call)(*args)) for f in (theirs, ours)]
                assert made[0] == made[1], (seed, step, call, args)
        assert volume.read_bytes(name) == (tmp_path / name).read_bytes(), seed


@pytest.mark.parametrize(
    "mode", ["", "q", "rw", "r+w", "rbt", "w++", "rbb", "b", "+", "U", "rt+b", "ax"]
)
def test_mode_that_open_refuses_is_refused(volume: Volume, tmp_path: Path, mode: str) -> None:
    (tmp_path / "f").touch()
    volume.touch("f")
    with pytest.raises(ValueError):
        open(tmp_path / "f", mode)
    with pytest.raises(ValueError):
        volume.open("f", mode)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "rb", "encoding": "utf-8"},
        {"mode": "rb", "newline": ""},
        {"mode": "rb", "errors": "strict"},
        {"mode": "r", "buffering": 0},
        {"mode": "r", "newline": "x"},
        {"mode": "r", "encoding": "no such"},
        {"mode": 3},
    ],
)
def test_options_that_open_refuses_are_refused(
    volume: Volume, tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "f").touch()
    volume.touch("f")
    kinds = (ValueError, TypeError, LookupError)
    with pytest.raises(kinds) as theirs:
        open(tmp_path / "f", **options)
    with pytest.raises(kinds) as ours:
        volume.open("f", **options)
    assert ours.type is theirs.type


def test_text_is_encoded_and_lines_are_translated(volume: Volume, tmp_path: Path) -> None:
    for options in ({"encoding": "utf-16"}, {"newline": "\r\n"}, {"encoding": "latin-1"}):
        for fs_open, name in ((open, str(tmp_path / "t")), (volume.open, "t")):
            with fs_open(name, "w", **options) as file:  # type: ignore[operator]
                assert isinstance(file, io.TextIOWrapper)
                file.write("grün\nlast\n")
                print("printed", file=file)
        assert volume.read_bytes("t") == (tmp_path / "t").read_bytes()
        with volume.open("t", encoding=options.get("encoding")) as file:
            assert list(file) == ["grün\n", "last\n", "printed\n"]


def test_line_buffered_text_is_there_after_each_line(volume: Volume) -> None:
    with volume.open("log", "w", 1) as log:
        log.write("one\n")
        assert volume.read_bytes("log") == b"one\n"


def test_file_object_is_a_raw_io_base(volume: Volume) -> None:
    with volume.open("f", "w+b", 0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.name == "f"
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        assert not file.isatty()


def test_zip_archive_in_a_volume(volume: Volume) -> None:
    with volume.open("a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/y", b"z" * 100_000, zipfile.ZIP_DEFLATED)
    with volume.open("a.zip", "r+b") as file, zipfile.ZipFile(file, "a") as archive:
        archive.writestr("more", "text")
    with volume.open("a.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("x/y") == b"z" * 100_000
        assert archive.namelist() == ["x/y", "more"]


def test_tar_archive_in_a_volume(volume: Volume) -> None:
    with volume.open("a.tar.gz", "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        info = tarfile.TarInfo("x")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    with volume.open("a.tar.gz", "rb") as file, tarfile.open(fileobj=file) as tar:
        member = tar.extractfile("x")
        assert member is not None and member.read() == b"hello"


def test_pickle_in_a_volume(volume: Volume) -> None:
    value = {"a": [1, 2, 3], "b": b"x" * 100_000}
    with volume.open("p", "wb") as file:
        pickle.dump(value, file)
    with volume.open("p", "rb") as file:
        assert pickle.load(file) == value


def test_database_in_a_volume(volume: Volume) -> None:
    database = sqlite3.connect(":memory:")
    database.executescript("create table t(x); insert into t values (7)")
    volume.write_bytes("db", database.serialize())
    database.close()
    copy = sqlite3.connect(":memory:")
    copy.deserialize(volume.read_bytes("db"))
    assert copy.execute("select x from t").fetchall() == [(7,)]
    copy.close()


def test_buffer_of_other_items_is_written_as_bytes(volume: Volume) -> None:
    import array

    values = array.array("d", [1.5, -2.0])
    with volume.open("f", "w+b", 0) as file:
        assert file.write(values) == 16
        file.seek(0)
        back = array.array("d", [0, 0])
        assert file.readinto(back) == 16
        assert back == values
    assert volume.write_bytes("g", values) == 16
    assert volume.read_bytes("g") == values.tobytes()


def test_large_buffer_is_written_and_read_whole(volume: Volume) -> None:
    content = bytearray(os.urandom(1 << 20) * 20)
    with volume.open("f", "wb") as file:
        assert file.write(content) == len(content)
    assert volume.read_bytes("f") == content
    with volume.open("f", "rb", 0) as file:
        back = bytearray(len(content) + 5)
        assert file.readinto(back) == len(content)
        assert back[:-5] == content


def test_read_only_buffer_is_not_read_into(volume: Volume) -> None:
    volume.write_bytes("f", b"abc")
    with volume.open("f", "rb", 0) as file, pytest.raises(TypeError):
        file.readinto(b"xyz")


def test_holes_are_found_and_made(volume: Volume) -> None:
    with FileIO(volume, "sparse", "w+") as file:
        file.pwrite(b"x", 1 << 20)
        assert file.seek(0, os.SEEK_DATA) == 1 << 20
        assert file.seek(0, os.SEEK_HOLE) == 0
        with pytest.raises(OSError) as error:
            file.seek(2 << 20, os.SEEK_DATA)
        assert error.value.errno == errno.ENXIO
        assert file.pread(2, (1 << 20) - 1) == b"\0x"
        file.allocate(0, 8192)
        assert file.stat().st_blocks >= 16
        file.punch_hole(0, 8192)
        assert file.seek(0, os.SEEK_DATA) == 1 << 20
        assert file.stat().st_size == (1 << 20) + 1


def test_temporary_file_has_no_name(volume: Volume) -> None:
    before = volume.listdir()
    with volume.temporary_file() as file:
        file.write(b"gone soon")
        file.seek(0)
        assert file.read() == b"gone soon"
        assert volume.listdir() == before


def test_removed_file_stays_usable(volume: Volume) -> None:
    with volume.open("f", "w+b", 0) as file:
        volume.unlink("f")
        file.write(b"still there")
        assert file.seek(0) == 0
        assert file.read() == b"still there"


def test_replaced_file_keeps_its_permissions(volume: Volume) -> None:
    volume.write_bytes("f", b"old")
    volume.chmod("f", 0o640)
    volume.replace_bytes("f", b"new")
    assert volume.read_bytes("f") == b"new"
    assert volume.stat("f").st_mode & 0o777 == 0o640
    assert volume.listdir() == ["f"]
    volume.mkdir("d")
    with pytest.raises(IsADirectoryError):
        volume.replace_bytes("d", b"new")
    assert volume.listdir() == ["f", "d"]


def test_umask_is_that_of_the_volume() -> None:
    with Volume.in_memory(64 << 20, umask=0o077) as volume:
        volume.write_bytes("f", b"")
        volume.mkdir("d")
        with volume.open("g", "x", perm=0o777):
            pass
        modes = [volume.stat(name).st_mode & 0o7777 for name in ("f", "d", "g")]
        assert modes == [0o600, 0o700, 0o700]


def test_unclosed_file_is_warned_about_and_written(volume: Volume) -> None:
    file = volume.open("f", "wb")
    file.write(b"buffered")
    with pytest.warns(ResourceWarning, match="unclosed file"):
        del file
    assert volume.read_bytes("f") == b"buffered"


def test_stat_says_when(volume: Volume) -> None:
    volume.write_bytes("f", b"12345")
    st = volume.stat("f")
    assert st == volume.lstat("f")
    assert st.st_size == 5 and st.st_nlink == 1
    assert abs(st.st_mtime - st.st_mtime_ns / 1e9) < 1e-6
    assert st.st_birthtime_ns <= st.st_mtime_ns
    assert "st_size=5" in repr(st)
    with Volume.in_memory(64 << 20) as other:
        other.touch("f")
        assert other.stat("f").st_dev != st.st_dev


def test_closed_file_stays_closed(volume: Volume) -> None:
    file = FileIO(volume, "f", "w")
    file.close()
    file.close()
    assert file.closed
    assert repr(file) == "<cairnfs.FileIO [closed]>"
    for call in (file.readable, file.tell, file.fsync, file.stat, lambda: file.write(b"")):
        with pytest.raises(ValueError):
            call()


def test_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert cairnfs.__version__ == version("cairnfs")
