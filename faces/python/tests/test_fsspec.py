"""The fsspec file system: fsspec's own tests, URLs, transactions, and libraries that use it."""

import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

import cairnfs
from cairnfs.fsspec import CairnFileSystem

SIZE = 256 << 20


class CairnFixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self) -> Iterator[CairnFileSystem]:
        with cairnfs.Volume.in_memory(SIZE) as volume:
            yield CairnFileSystem(volume, auto_mkdir=True, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "/"


class TestCopy(AbstractCopyTests, CairnFixtures):
    pass


class TestGet(AbstractGetTests, CairnFixtures):
    pass


class TestPut(AbstractPutTests, CairnFixtures):
    pass


class TestOpen(AbstractOpenTests, CairnFixtures):
    pass


class TestPipe(AbstractPipeTests, CairnFixtures):
    pass


@pytest.fixture
def url(image: Path) -> Iterator[str]:
    """The volume as the last part of a URL."""
    yield f"file://{image}"
    for fs in list(CairnFileSystem._cache.values()):
        fs.close()
    CairnFileSystem.clear_instance_cache()


@pytest.fixture
def fs(url: str) -> Any:
    return fsspec.url_to_fs(f"cairn://::{url}")[0]


def test_protocol_is_registered_by_the_package() -> None:
    assert "cairn" in fsspec.available_protocols()
    assert fsspec.get_filesystem_class("cairn") is CairnFileSystem


def test_file_is_written_and_read_by_url(url: str) -> None:
    with fsspec.open(f"cairn://inner::{url}", "w") as file:
        file.write("text")
    with fsspec.open(f"cairn:///inner::{url}", "rb") as file:
        assert file.read() == b"text"
    fs, path = fsspec.url_to_fs(f"cairn://a/b::{url}")
    assert path == "/a/b"
    assert fs.ls("/", detail=False) == ["/inner"]
    with fsspec.open(f"cairn://z.gz::{url}", "wb", compression="gzip") as file:
        file.write(b"zipped")
    with fsspec.open(f"cairn://z.gz::{url}", "rb", compression="infer") as file:
        assert file.read() == b"zipped"


def test_archive_in_a_volume_is_read_by_a_chain(url: str, tmp_path: Path) -> None:
    import zipfile

    fs = fsspec.url_to_fs(f"cairn://::{url}")[0]
    with fs.open("/a.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", "in the archive")
    with fsspec.open(f"zip://x::cairn://a.zip::{url}", "r") as file:
        assert file.read() == "in the archive"


def test_volume_is_made_by_options(tmp_path: Path) -> None:
    with fsspec.open(
        f"cairn://f::file://{tmp_path}/new", "wb", cairn={"mode": "a", "size": SIZE}
    ) as file:
        file.write(b"made")
    fs = fsspec.filesystem("cairn", fo=f"{tmp_path}/new")
    assert fs.cat("/f") == b"made"
    fs.close()


def test_file_systems_of_one_volume_share_it(url: str, image: Path) -> None:
    one = fsspec.url_to_fs(f"cairn://::{url}")[0]
    two = CairnFileSystem(image, auto_mkdir=True)
    assert one is not two
    assert one.volume is two.volume
    two.close()
    one.pipe("/f", b"opened again")
    assert two.cat("/f") == b"opened again"


def test_branches_and_snapshots_are_opened_by_an_option(fs: Any, url: str) -> None:
    fs.pipe("/f", b"before")
    fs.volume.snapshot("monday")
    fs.volume.branch("trial")
    fs.pipe("/f", b"after")
    with fsspec.open(f"cairn://f::{url}", "wb", cairn={"branch": "trial"}) as file:
        file.write(b"trial")
    for name, content in (("monday", b"before"), ("trial", b"trial"), ("main", b"after")):
        with fsspec.open(f"cairn://f::{url}", "rb", cairn={"branch": name}) as file:
            assert file.read() == content
    fs.close()
    options = {"mode": "r", "branch": "monday"}
    with fsspec.open(f"cairn://f::{url}", "rb", cairn=options) as file:
        assert file.read() == b"before"
    with pytest.raises(FileNotFoundError):
        fsspec.url_to_fs(f"cairn://f::{url}", cairn={"mode": "r", "branch": "none"})


def test_volume_that_is_not_local_is_refused() -> None:
    with pytest.raises(ValueError, match="local file"):
        fsspec.url_to_fs("cairn://f::memory://vol")
    with pytest.raises(ValueError, match="which volume"):
        fsspec.filesystem("cairn")


def test_info_and_listing_agree(fs: Any) -> None:
    fs.makedirs("/d/e")
    fs.pipe({"/d/f": b"12345", "/d/g": b""})
    fs.symlink("/d/f", "/d/l")
    listed = fs.ls("/d", detail=True)
    assert [info["name"] for info in listed] == ["/d/e", "/d/f", "/d/g", "/d/l"]
    assert [info["type"] for info in listed] == ["directory", "file", "file", "file"]
    assert listed == [fs.info(info["name"]) for info in listed]
    assert listed[3]["destination"] == b"/d/f".decode() and listed[3]["size"] == 5
    assert fs.find("/") == ["/d/f", "/d/g", "/d/l"]
    assert fs.glob("/d/*") == ["/d/e", "/d/f", "/d/g", "/d/l"]
    assert fs.du("/d") == 10
    assert fs.modified("/d/f") >= fs.created("/d/f")
    before = fs.ukey("/d/f")
    fs.pipe("/d/f", b"1234567")
    assert fs.ukey("/d/f") != before
    with pytest.raises(FileNotFoundError):
        fs.ls("/none")
    assert fs.cat_file("/d/f", 1, 3) == b"23"
    assert fs.tail("/d/f", 2) == b"67"


def test_moving_is_renaming(fs: Any) -> None:
    fs.pipe({"/d/f": b"1", "/g": b"2"})
    number = fs.info("/d/f")["ino"]
    fs.mv("/d", "/e", recursive=True)
    assert fs.info("/e/f")["ino"] == number
    fs.mv("/g", "/e")
    assert fs.cat("/e/g") == b"2"
    assert fs.find("/") == ["/e/f", "/e/g"]
    with pytest.raises(FileNotFoundError):
        fs.mv("/none", "/x")
    strict = CairnFileSystem(fs.volume, auto_mkdir=False)
    with pytest.raises(FileNotFoundError):
        strict.mv("/e", "/no/x")
    with pytest.raises(FileNotFoundError):
        strict.pipe("/no/x", b"")
    assert fs.find("/") == ["/e/f", "/e/g"]


def test_removing_a_tree_asks_for_recursive(fs: Any) -> None:
    fs.makedirs("/d/e")
    fs.touch("/d/f")
    with pytest.raises(ValueError, match="recursive"):
        fs.rm("/d")
    fs.rm("/d/f")
    fs.rm("/d", recursive=True)
    fs.pipe("/x", b"")
    fs.rm("/", recursive=True)
    assert fs.ls("/") == []


def test_transaction_is_seen_when_it_ends(fs: Any) -> None:
    fs.pipe("/old", b"old")
    with fs.transaction:
        with fs.open("/old", "wb") as file:
            file.write(b"new")
        with fs.open("/log", "ab") as file:
            file.write(b"line")
        fs.pipe("/piped", b"p")
        assert fs.cat("/old") == b"old"
        assert not fs.exists("/log") and not fs.exists("/piped")
    assert fs.cat(["/old", "/log", "/piped"]) == {"/old": b"new", "/log": b"line", "/piped": b"p"}
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("/old", "ab") as file:
            file.write(b" and more")
        raise ZeroDivisionError
    assert fs.cat("/old") == b"new"
    assert sorted(fs.ls("/", detail=False)) == ["/log", "/old", "/piped"]


def read_in_a_process(fs: Any, answers: Any) -> None:
    answers.put(fs.cat("/f"))


def test_reader_is_pickled_to_other_processes(fs: Any, url: str) -> None:
    fs.pipe("/f", b"shared")
    fs.close()
    reader = fsspec.url_to_fs(f"cairn://::{url}", cairn={"mode": "r"})[0]
    assert pickle.loads(pickle.dumps(reader)) is reader
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [
        context.Process(target=read_in_a_process, args=(reader, answers)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == [b"shared"] * 2
    for process in processes:
        process.join()
    answers.close()
    answers.join_thread()


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_forked_child_opens_the_volume_itself(fs: Any, url: str) -> None:
    reader = None
    fs.pipe("/f", b"parent")
    pid = os.fork()
    if pid == 0:
        try:
            fs.cat("/f")
        except OSError as e:
            os._exit(e.errno or 1)
        os._exit(0)
    import errno

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EBUSY
    fs.close()
    reader = fsspec.url_to_fs(f"cairn://::{url}", cairn={"mode": "r"})[0]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if reader.cat("/f") == b"parent" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_local_files_are_put_and_got(fs: Any, tmp_path: Path) -> None:
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f").write_bytes(b"x" * 3_000_000)
    fs.put(f"{tmp_path}/tree", "/tree", recursive=True)
    assert fs.size("/tree/sub/f") == 3_000_000
    fs.get("/tree", f"{tmp_path}/back", recursive=True)
    assert (tmp_path / "back/sub/f").read_bytes() == b"x" * 3_000_000


def test_pandas_and_pyarrow_read_and_write_by_url(fs: Any, url: str) -> None:
    import pandas

    frame = pandas.DataFrame({"a": range(1000), "b": [str(n) for n in range(1000)]})
    frame.to_csv(f"cairn://frame.csv::{url}", index=False)
    assert pandas.read_csv(f"cairn://frame.csv::{url}", dtype={"b": str}).equals(frame)
    frame.to_parquet(f"cairn://frame.parquet::{url}")
    assert pandas.read_parquet(f"cairn://frame.parquet::{url}").equals(frame)

    import pyarrow.dataset
    import pyarrow.parquet

    table = pyarrow.table({"k": [1, 1, 2], "v": [1.0, 2.0, 3.0]})
    fs.mkdir("/set")
    pyarrow.dataset.write_dataset(table, "/set", format="parquet", filesystem=fs, partitioning=["k"])
    back = pyarrow.dataset.dataset("/set", filesystem=fs, partitioning=["k"]).to_table()
    assert sorted(back["v"].to_pylist()) == [1.0, 2.0, 3.0]


def test_zarr_stores_arrays_by_url(url: str) -> None:
    import numpy
    import zarr

    values = numpy.arange(10_000).reshape(100, 100)
    store = f"cairn://array::{url}"
    written = zarr.create_array(store, shape=values.shape, chunks=(10, 10), dtype=values.dtype)
    written[:] = values
    assert (zarr.open_array(store, mode="r")[:] == values).all()
