"""Arguments, handles and processes that are wrong get an exception, and nothing is written."""

import errno
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cairnfs
from cairnfs import FileIO, Volume

SIZE = 64 << 20

# Calls of a volume with one path.
ONE_PATH = [
    "stat", "lstat", "mkdir", "unlink", "remove", "rmdir", "readlink", "realpath", "mknod",
    "listdir", "scandir", "read_bytes", "sync_dir", "listxattr", "open", "read_text", "touch",
    "makedirs", "mkfifo", "rmtree", "utime", "getsize", "temporary_file", "statvfs",
]  # fmt: skip
TWO_PATHS = [
    "rename", "replace", "rename_noreplace", "exchange", "link", "symlink", "copyfile", "copy",
    "copy2", "copytree", "move", "samefile",
]  # fmt: skip


@pytest.mark.parametrize("name", ONE_PATH)
@pytest.mark.parametrize("path", [3, 3.5, [], {}, object(), b"x"[0], bytearray(b"x")])
def test_path_of_a_wrong_type_is_a_type_error(volume: Volume, name: str, path: object) -> None:
    with pytest.raises(TypeError):
        getattr(volume, name)(path)


@pytest.mark.parametrize("name", TWO_PATHS)
def test_second_path_of_a_wrong_type_is_a_type_error(volume: Volume, name: str) -> None:
    volume.touch("f")
    with pytest.raises(TypeError):
        getattr(volume, name)("f", 7)


class Lies:
    """A path that is no path."""

    def __fspath__(self) -> Any:
        return 7


class Fails:
    """A path that raises."""

    def __fspath__(self) -> str:
        raise ZeroDivisionError


def test_object_with_a_wrong_fspath_is_refused(volume: Volume) -> None:
    with pytest.raises(TypeError):
        volume.stat(Lies())
    with pytest.raises(ZeroDivisionError):
        volume.stat(Fails())


@pytest.mark.parametrize("name", ONE_PATH)
@pytest.mark.parametrize("path", ["a\0b", b"a\0b", "\0"])
def test_path_with_a_null_byte_is_a_value_error(volume: Volume, name: str, path: Any) -> None:
    with pytest.raises(ValueError, match="null byte"):
        getattr(volume, name)(path)


def test_question_about_an_impossible_path_is_answered_no(volume: Volume) -> None:
    for path in ("a\0b", "x" * 300, "a/b"):
        for name in ("exists", "lexists", "isfile", "isdir", "islink"):
            assert getattr(volume, name)(path) is False
    with pytest.raises(TypeError):
        volume.exists(7)  # type: ignore[arg-type]


def test_name_that_is_not_utf8_comes_back(volume: Volume) -> None:
    volume.write_bytes(b"caf\xe9", b"bytes")
    assert volume.listdir() == ["caf\udce9"]
    assert volume.listdir(b"/") == [b"caf\xe9"]
    assert volume.read_bytes("caf\udce9") == b"bytes"
    (entry,) = volume.scandir()
    assert entry.name == "caf\udce9" and entry.path == "/caf\udce9"
    with pytest.raises(FileNotFoundError) as error:
        volume.stat("no\udce9")
    assert error.value.filename == "no\udce9"
    with pytest.raises(UnicodeEncodeError):
        volume.stat("\ud800")


@pytest.mark.parametrize("data", ["text", 5, None, [1], object()])
def test_data_of_a_wrong_type_is_a_type_error(volume: Volume, data: Any) -> None:
    for call in (
        lambda: volume.write_bytes("f", data),
        lambda: volume.write_many({"f": data}),
        lambda: volume.setxattr("/", "user.a", data),
    ):
        with pytest.raises(TypeError):
            call()
    with FileIO(volume, "g", "w") as file, pytest.raises(TypeError):
        file.write(data)
    assert volume.listdir() == ["g"]


@pytest.mark.parametrize("items", [5, "ab", [("a",)], [("a", b"", b"")], [5], {"a": "x"}])
def test_batch_of_a_wrong_shape_writes_nothing(volume: Volume, items: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        volume.write_many(items)
    with pytest.raises(TypeError):
        volume.read_many(items if isinstance(items, (int, str)) else [object()])
    assert volume.listdir() == []


def test_huge_numbers_are_refused(volume: Volume) -> None:
    with FileIO(volume, "f", "w+") as file:
        for number in (2**63, 2**64, -(2**63) - 1, 2**200):
            for call in (file.seek, file.truncate, file.read):
                with pytest.raises(OverflowError):
                    call(number)  # type: ignore[operator]
        for call in (
            lambda: file.truncate(2**63 - 1),
            lambda: file.pwrite(b"x", 2**63 - 1),
            lambda: volume.truncate("f", 2**62),
        ):
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == errno.EFBIG
        for call in (
            lambda: file.seek(-1),
            lambda: file.truncate(-1),
            lambda: file.pread(-1, 0),
            lambda: file.pread(1, -1),
            lambda: file.pwrite(b"", -1),
            lambda: file.seek(0, 99),
        ):
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == errno.EINVAL
        assert file.read(2**63 - 1) == b""
        assert file.stat().st_size == 0


def test_file_larger_than_memory_is_a_memory_error(volume: Volume) -> None:
    volume.touch("f")
    volume.truncate("f", 2**60)
    assert volume.getsize("f") == 2**60
    with volume.open("f", "rb", 0) as file:
        for read in (file.read, file.readall, lambda: file.read(2**60), lambda: volume.read_bytes("f"),
                     lambda: volume.read_many(["f"])):  # fmt: skip
            with pytest.raises(MemoryError):
                read()
        assert file.read(3) == b"\0\0\0"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "w"},
        {"mode": 5},
        {"size": -1},
        {"size": 2**70},
        {"size": "64M"},
        {"durability_interval": -1.0},
        {"durability_interval": float("nan")},
        {"umask": -1},
        {"owner": (1,)},
        {"unknown": 1},
        {"label": b"x"},
    ],
)
def test_option_that_is_wrong_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Volume(tmp_path / "vol", **{"mode": "a", "size": SIZE, **options})
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_no_volume_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        Volume(tmp_path / "none")
    assert error.value.filename == str(tmp_path / "none")
    (tmp_path / "text").write_bytes(b"no volume" * 100_000)
    with pytest.raises(OSError, match="volume"):
        Volume(tmp_path / "text")
    with pytest.raises(OSError, match="size"):
        Volume(tmp_path / "new", "x")
    Volume(tmp_path / "vol", "x", size=SIZE).close()
    with pytest.raises(FileExistsError):
        Volume(tmp_path / "vol", "x", size=SIZE)


def test_read_only_volume_refuses_changes(image: Path) -> None:
    before = image.read_bytes()
    with Volume(image, "r") as volume:
        assert volume.read_only
        for call in (
            lambda: volume.mkdir("d"),
            lambda: volume.write_bytes("f", b""),
            lambda: volume.chmod("/", 0o700),
        ):
            with pytest.raises(OSError) as error:
                call()
            assert error.value.errno == errno.EROFS
        with Volume(image, "r") as other:
            assert other.listdir() == []
    assert image.read_bytes() == before


def test_closed_volume_raises_value_errors(image: Path) -> None:
    volume = Volume(image)
    volume.write_bytes("f", b"abc")
    file = volume.open("f", "r+b", 0)
    listing = volume.scandir()
    sequence = volume.sequence()
    volume.close()
    volume.close()
    assert volume.closed
    calls: list[Callable[[], Any]] = [
        *(lambda name=name: getattr(volume, name)("f") for name in ONE_PATH),
        *(lambda name=name: getattr(volume, name)("f", "g") for name in TWO_PATHS),
        lambda: volume.exists("f"),
        lambda: volume.write_bytes("f", b""),
        lambda: volume.write_many({}),
        lambda: volume.read_many([]),
        volume.sync,
        volume.sequence,
        volume.info,
        volume.trim,
        volume.snapshots,
        lambda: volume.sync_through(sequence),
        lambda: volume.is_durable(sequence),
        lambda: volume.snapshot("s"),
        lambda: volume.read_only,
        lambda: next(listing),
        lambda: file.read(),
        lambda: file.write(b"x"),
        lambda: file.tell(),
        lambda: file.fsync(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed volume"):
            call()
    file.close()
    listing.close()
    with Volume(image) as again:
        assert again.read_bytes("f") == b"abc"


def test_sequence_of_another_volume_is_refused(volume: Volume) -> None:
    with Volume.in_memory(SIZE) as other, pytest.raises(ValueError, match="another volume"):
        volume.sync_through(other.sequence())


def test_open_things_are_not_pickled(volume: Volume) -> None:
    volume.touch("f")
    with FileIO(volume, "f") as file:
        for thing in (volume, file, volume.stat("f"), volume.sequence()):
            with pytest.raises(TypeError):
                pickle.dumps(thing)


def test_native_classes_are_not_made_by_hand() -> None:
    for kind in (cairnfs.Stat, cairnfs.Sequence, cairnfs.DirEntry, cairnfs.ScanDir):
        with pytest.raises(TypeError):
            kind()


def test_threads_share_a_volume(volume: Volume) -> None:
    failures: list[BaseException] = []

    def work(n: int) -> None:
        try:
            volume.mkdir(f"d{n}")
            for i in range(200):
                volume.write_bytes(f"d{n}/{i}", bytes([n]) * i)
            with volume.open("log", "ab", 0) as log:
                for _ in range(50):
                    log.write(bytes([n]) * 10)
            contents = volume.read_many(f"d{n}/{i}" for i in range(200))
            assert contents == [bytes([n]) * i for i in range(200)]
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    log = volume.read_bytes("log")
    assert len(log) == 8 * 50 * 10
    assert all(len(set(log[i : i + 10])) == 1 for i in range(0, len(log), 10))


def test_volume_is_closed_while_threads_use_it() -> None:
    for _ in range(5):
        volume = Volume.in_memory(SIZE)
        started = threading.Barrier(5)
        wrong: list[BaseException] = []

        def work(n: int, volume: Volume = volume, started: Any = started) -> None:
            started.wait()
            try:
                for i in range(100_000):
                    volume.write_bytes(f"{n}-{i}", b"x")
            except (ValueError, OSError):
                pass
            except BaseException as e:
                wrong.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        volume.close()
        for thread in threads:
            thread.join()
        assert wrong == []


def in_child(work: Callable[[], Any]) -> None:
    """Runs it in a forked child, which ends as a Python program does."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            gc.collect()
            status = 0
        except BaseException as e:
            print(f"in the child: {e!r}", file=sys.stderr)
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(OSError, match="parent of this process") as error:
        call()
    assert error.value.errno == errno.EBADF


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_forked_child_cannot_use_the_volume(image: Path) -> None:
    volume = Volume(image)
    volume.write_bytes("f", b"parent")
    file = volume.open("f", "r+b", 0)
    buffered = volume.open("b", "wb")
    buffered.write(b"kept by the parent")
    listing = volume.scandir()

    def child() -> None:
        for call in (
            lambda: volume.stat("f"),
            lambda: volume.write_bytes("f", b"child"),
            lambda: volume.write_many({"x": b""}),
            volume.sync,
            lambda: file.write(b"child"),
            lambda: file.read(),
            lambda: next(listing),
            buffered.flush,
        ):
            refused(call)
        file.close()
        listing.close()
        volume.close()
        volume.close()
        assert volume.closed
        with pytest.raises(OSError) as error:
            Volume(image)
        assert error.value.errno == errno.EBUSY

    in_child(child)
    buffered.close()
    file.close()
    assert volume.read_bytes("f") == b"parent"
    assert volume.read_bytes("b") == b"kept by the parent"
    volume.close()
    with Volume(image) as again:
        assert again.listdir() == ["f", "b"]


CHILD = """
import os, sys, cairnfs
volume = cairnfs.Volume(sys.argv[1])
volume.write_bytes("f", b"parent")
pid = os.fork()
if pid == 0:
    sys.exit(3)  # The interpreter ends, with the volume and all that it has to run at exit.
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
volume.write_bytes("g", b"after the child")
volume.close()
"""


def test_exit_of_a_forked_child_writes_nothing(image: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, image], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    with Volume(image) as volume:
        assert volume.read_many(["f", "g"]) == [b"parent", b"after the child"]


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_closing_in_the_parent_frees_a_volume_that_a_child_inherited(image: Path) -> None:
    volume = Volume(image)
    asked, answer = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(asked[1])
        os.read(asked[0], 1)
        os._exit(0)
    os.close(asked[0])
    try:
        volume.close()
        with Volume(image) as again:
            again.write_bytes("f", b"while the child lives")
    finally:
        os.close(asked[1])
        os.waitpid(pid, 0)
        for end in answer:
            os.close(end)


def open_elsewhere(image: str, answers: Any) -> None:
    try:
        Volume(image)
    except OSError as e:
        answers.put((type(e).__name__, e.errno, str(e), e.filename))


def test_second_process_gets_a_clear_error(image: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with Volume(image):
        answers = context.Queue()
        process = context.Process(target=open_elsewhere, args=(str(image), answers))
        process.start()
        kind, number, message, filename = answers.get()
        process.join()
        answers.close()
        answers.join_thread()
    assert (kind, number, filename) == ("OSError", errno.EBUSY, str(image))
    assert "in use by another process: unmount it or close it there first" in message


def test_second_opening_in_one_process_says_so(image: Path) -> None:
    with Volume(image):
        with pytest.raises(OSError, match="is open in this process already") as error:
            Volume(image)
    assert (error.value.errno, error.value.filename) == (errno.EBUSY, str(image))


LEFT_OPEN = """
import sys, cairnfs
volume = cairnfs.Volume(sys.argv[1], durability_interval=None)
volume.write_bytes("f", b"never closed")
keep = [volume]
keep.append(keep)
import os, atexit
atexit.register(lambda: None)
if sys.argv[2] == "kill":
    import signal
    # After the functions that run at exit.
    class Last:
        def __del__(self, kill=os.kill, pid=os.getpid(), signal=signal.SIGKILL):
            kill(pid, signal)
    sys.last = Last()
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_volume_that_was_never_closed_is_durable_at_exit(image: Path, end: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, image, end], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0 if end == "exit" else -9, "")
    with Volume(image) as volume:
        assert volume.read_bytes("f") == b"never closed"
