"""Small files written, listed, read and removed: a volume beside what Python programs use instead.

    python python/bench/small_files.py [--files N] [--size BYTES] [--rounds N] [--dir DIR]
                                       [--also DIR]...

Each store gets the same files in directories of 1,000, in a new place below DIR, in turn; several
rounds are interleaved. Files of the host are measured in the directories of --also, too. Printed are
files per second at the median of the rounds, and the ratio to `os` in DIR. `durable` is 10 batches of
a hundredth of the files, made durable one after the other. scripts/small-files runs this on ext4, XFS and
tmpfs. It needs the packages fsspec and lmdb.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import fsspec
import lmdb

import cairnfs

PER_DIRECTORY = 1_000
BATCHES = 10
STEPS = ("write", "walk", "read", "remove", "durable")


class Store:
    """A place for small files. A step that a store does not have is left out."""

    def __init__(self, directory: Path, files: list[tuple[str, bytes]]) -> None:
        self.directory = directory
        self.files = files
        self.names = [name for name, _ in files]
        self.parents = sorted({os.path.dirname(name) for name in self.names})

    def close(self) -> None:
        pass


class Directory(Store):
    """Files of the host, through open and os."""

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def prepare(self) -> None:
        for parent in self.parents:
            os.makedirs(self.path(parent), exist_ok=True)

    def write(self) -> None:
        for name, data in self.files:
            with open(self.path(name), "wb", 0) as file:
                file.write(data)

    def walk(self) -> int:
        return sum(
            entry.stat().st_size
            for parent in self.parents
            for entry in os.scandir(self.path(parent))
        )

    def read(self) -> int:
        total = 0
        for name in self.names:
            with open(self.path(name), "rb", 0) as file:
                total += len(file.read())
        return total

    def remove(self) -> None:
        for name in self.names:
            os.unlink(self.path(name))

    def durable(self) -> None:
        for batch in batches(self.files):
            for name, data in batch:
                with open(self.path(name), "wb", 0) as file:
                    file.write(data)
                    os.fsync(file.fileno())
            for parent in {os.path.dirname(name) for name, _ in batch}:
                fd = os.open(self.path(parent), os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)


class InVolume(Store):
    """A volume, one call for each file."""

    def prepare(self) -> None:
        content = sum(len(data) + 512 for _, data in self.files)
        self.volume = cairnfs.Volume(
            self.directory / "vol", "x", size=(256 << 20) + 8 * content
        )
        for parent in self.parents:
            self.volume.makedirs(parent, exist_ok=True)

    def write(self) -> None:
        for name, data in self.files:
            self.volume.write_bytes(name, data)

    def walk(self) -> int:
        return sum(
            entry.stat().st_size
            for parent in self.parents
            for entry in self.volume.scandir(parent)
        )

    def read(self) -> int:
        return sum(len(self.volume.read_bytes(name)) for name in self.names)

    def remove(self) -> None:
        for name in self.names:
            self.volume.unlink(name)

    def durable(self) -> None:
        for batch in batches(self.files):
            for name, data in batch:
                self.volume.write_bytes(name, data)
            self.volume.sync_through(self.volume.sequence())

    def close(self) -> None:
        self.volume.close()


class InBatches(InVolume):
    """A volume, one call for many files."""

    def write(self) -> None:
        self.volume.write_many(self.files)

    def walk(self) -> int:
        return sum(
            entry.stat().st_size
            for parent in self.parents
            for entry in self.volume.scandir(parent, stat=True)
        )

    def read(self) -> int:
        return sum(
            len(data)
            for at in range(0, len(self.names), PER_DIRECTORY)
            for data in self.volume.read_many(self.names[at : at + PER_DIRECTORY])
        )

    def remove(self) -> None:
        for parent in self.parents:
            self.volume.rmtree(parent)

    def durable(self) -> None:
        for batch in batches(self.files):
            self.volume.write_many(batch)
            self.volume.sync_through(self.volume.sequence())


class OpenedInVolume(InVolume):
    """A volume, through file objects as with open."""

    def write(self) -> None:
        for name, data in self.files:
            with self.volume.open(name, "wb", 0) as file:
                file.write(data)

    def read(self) -> int:
        total = 0
        for name in self.names:
            with self.volume.open(name, "rb", 0) as file:
                total += len(file.read())
        return total


class Zip(Store):
    """An archive of zipfile, not compressed."""

    def prepare(self) -> None:
        pass

    def write(self) -> None:
        with zipfile.ZipFile(self.directory / "a.zip", "w") as archive:
            for name, data in self.files:
                archive.writestr(name, data)

    def walk(self) -> int:
        with zipfile.ZipFile(self.directory / "a.zip") as archive:
            return sum(info.file_size for info in archive.infolist())

    def read(self) -> int:
        with zipfile.ZipFile(self.directory / "a.zip") as archive:
            return sum(len(archive.read(name)) for name in self.names)


class Sqlite(Store):
    """A table of names and blobs; one transaction for a step, or for a batch."""

    def prepare(self) -> None:
        self.database = sqlite3.connect(self.directory / "db", isolation_level=None)
        self.database.execute("pragma journal_mode = wal")
        self.database.execute("pragma synchronous = full")
        self.database.execute("create table f(name text primary key, data blob) without rowid")

    def put(self, files: Iterable[tuple[str, bytes]]) -> None:
        self.database.execute("begin")
        self.database.executemany("insert or replace into f values (?, ?)", files)
        self.database.execute("commit")

    def write(self) -> None:
        self.put(self.files)

    def walk(self) -> int:
        rows = self.database.execute("select name, length(data) from f")
        return sum(size for _, size in rows)

    def read(self) -> int:
        total = 0
        for name in self.names:
            row = self.database.execute("select data from f where name = ?", (name,))
            total += len(row.fetchone()[0])
        return total

    def remove(self) -> None:
        self.database.execute("begin")
        self.database.executemany("delete from f where name = ?", ((n,) for n in self.names))
        self.database.execute("commit")

    def durable(self) -> None:
        for batch in batches(self.files):
            self.put(batch)

    def close(self) -> None:
        self.database.close()


class Lmdb(Store):
    """LMDB: names and values; one transaction for a step, or for a batch."""

    def prepare(self) -> None:
        content = sum(len(data) + 512 for _, data in self.files)
        self.database = lmdb.open(
            str(self.directory / "lmdb"), subdir=False, map_size=(256 << 20) + 8 * content
        )

    def put(self, files: Iterable[tuple[str, bytes]]) -> None:
        with self.database.begin(write=True) as transaction:
            for name, data in files:
                transaction.put(name.encode(), data)

    def write(self) -> None:
        self.put(self.files)

    def walk(self) -> int:
        with self.database.begin(buffers=True) as transaction:
            return sum(len(value) for _, value in transaction.cursor())

    def read(self) -> int:
        with self.database.begin() as transaction:
            return sum(len(transaction.get(name.encode())) for name in self.names)

    def remove(self) -> None:
        with self.database.begin(write=True) as transaction:
            for name in self.names:
                transaction.delete(name.encode())

    def durable(self) -> None:
        for batch in batches(self.files):
            self.put(batch)

    def close(self) -> None:
        self.database.close()


class Fsspec(Directory):
    """Files of the host, through fsspec, which has no way to make them durable."""

    durable = None  # type: ignore[assignment]

    def prepare(self) -> None:
        super().prepare()
        self.fs = fsspec.filesystem("file", skip_instance_cache=True)

    def write(self) -> None:
        for name, data in self.files:
            self.fs.pipe_file(self.path(name), data)

    def walk(self) -> int:
        return sum(
            entry["size"]
            for parent in self.parents
            for entry in self.fs.ls(self.path(parent), detail=True)
        )

    def read(self) -> int:
        return sum(len(self.fs.cat_file(self.path(name))) for name in self.names)

    def remove(self) -> None:
        for name in self.names:
            self.fs.rm_file(self.path(name))


class CairnFsspec(Fsspec):
    """A volume, through fsspec."""

    def path(self, name: str) -> str:
        return name

    def prepare(self) -> None:
        content = sum(len(data) + 512 for _, data in self.files)
        self.fs = fsspec.filesystem(
            "cairn",
            fo=str(self.directory / "vol"),
            mode="x",
            size=(256 << 20) + 8 * content,
            skip_instance_cache=True,
        )
        for parent in self.parents:
            self.fs.makedirs(parent, exist_ok=True)

    def close(self) -> None:
        self.fs.close()


STORES: dict[str, type[Store]] = {
    "os": Directory,
    "cairnfs": InVolume,
    "cairnfs, batches": InBatches,
    "cairnfs, open()": OpenedInVolume,
    "zipfile": Zip,
    "sqlite3": Sqlite,
    "lmdb": Lmdb,
    "fsspec, local": Fsspec,
    "fsspec, cairn": CairnFsspec,
}


def made(step: str, files: int) -> int:
    """The number of files that a step is about."""
    return files // (10 * BATCHES) * BATCHES if step == "durable" else files


def batches(files: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    step = made("durable", len(files)) // BATCHES
    for at in range(0, BATCHES * step, step):
        yield files[at : at + step]


def measure(kind: type[Store], files: list[tuple[str, bytes]], base: Path) -> dict[str, float]:
    """Seconds of each step."""
    took = {}
    directory = Path(tempfile.mkdtemp(dir=base))
    store = kind(directory, files)
    try:
        store.prepare()  # type: ignore[attr-defined]
        for step in STEPS:
            call: Callable[[], int | None] | None = getattr(store, step, None)
            if call is None:
                continue
            if step == "durable":
                os.sync()
                for parent in store.parents if isinstance(store, InBatches) else ():
                    store.volume.makedirs(parent, exist_ok=True)
            start = time.perf_counter()
            result = call()
            took[step] = time.perf_counter() - start
            if step in ("walk", "read") and result != sum(len(data) for _, data in files):
                raise AssertionError(f"{kind.__name__}: {step} found {result} bytes")
    finally:
        store.close()
        shutil.rmtree(directory)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=100_000, help="at least 100")
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="DIR")
    options = parser.parse_args()
    if options.files < 10 * BATCHES:
        parser.error(f"--files: at least {10 * BATCHES}")
    data = os.urandom(options.size + options.files)
    files = [
        (f"d{n // PER_DIRECTORY}/f{n}", data[n : n + options.size]) for n in range(options.files)
    ]
    stores = [(name, kind, options.dir) for name, kind in STORES.items()]
    stores += [(f"os in {also.name}", Directory, also) for also in options.also]
    took: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in stores}
    for _ in range(options.rounds):
        for name, kind, directory in stores:
            took[name].append(measure(kind, files, directory))
    print(f"{options.files} files of {options.size} bytes, {options.rounds} rounds, files/s")
    print("store".ljust(24), *(step.rjust(20) for step in STEPS))
    for name, rounds in took.items():
        cells = []
        for step in STEPS:
            if step not in rounds[0]:
                cells.append("".rjust(20))
                continue
            rate, base = (
                made(step, options.files) / statistics.median(r[step] for r in took[which])
                for which in (name, "os")
            )
            cells.append(f"{rate:,.0f} ({rate / base:.2f})".rjust(20))
        print(name.ljust(24), *cells)


if __name__ == "__main__":
    main()
