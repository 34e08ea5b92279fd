"""The fsspec file system "cairn": files of a volume by URL.

    cairn://inner/path::file:///vol.img

inner/path begins at the root of the volume, and the part after :: is the volume's file. Storage
options of "cairn" are those of Volume. A process opens a volume once: file systems with the same
volume share it.
"""

from __future__ import annotations

import datetime
import io
import os
import stat as stat_bits
import threading
import weakref
from typing import IO, Any

from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractFileSystem
from fsspec.utils import isfilelike, stringify_path

from ._native import Stat
from ._volume import Volume

_COPY_STEP = 1 << 20


class _Volumes:
    """The volumes that file systems of this process have open, by path and options."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[Any, Volume] = weakref.WeakValueDictionary()

    def get(self, path: str, mode: str, options: dict[str, Any]) -> Volume:
        kind = "r" if mode == "r" else "r+"
        key = (os.path.realpath(path), kind)
        with self._lock:
            volume = self._open.get(key)
            if volume is None or volume.closed:
                volume = Volume(path, mode, **options)
                self._open[key] = volume
            return volume

    def forget(self) -> None:
        """Forgets what the parent of this process has open."""
        self.__init__()  # type: ignore[misc]


_volumes = _Volumes()
os.register_at_fork(after_in_child=_volumes.forget)


class CairnFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of a volume.

    fo is the path of the volume's file, or a Volume; mode and other options are those of Volume
    (size, label, ...), and branch names the branch or snapshot. auto_mkdir makes the directories on the path of a new file. Several processes can read a volume at a time if all use mode="r".
    Files written in a transaction (``with fs.transaction:``) appear whole, when it ends.
    """

    protocol = "cairn"
    root_marker = "/"
    cachable = True

    def __init__(
        self,
        fo: str | os.PathLike[str] | Volume = "",
        mode: str = "r+",
        auto_mkdir: bool = True,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        size: int | None = None,
        label: str | None = None,
        branch: str | None = None,
        cache_budget: int | None = None,
        durability_interval: float | None = 5.0,
        umask: int = 0o022,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        if target_protocol not in (None, "file", "local"):
            raise ValueError(
                f"a volume is a local file, and cannot be opened through {target_protocol!r}: "
                "copy it here first, or use cairn://path::file:///volume"
            )
        if not fo:
            raise ValueError("which volume? use cairn://path::file:///volume, or the option fo")
        self.auto_mkdir = auto_mkdir
        self._mode = mode
        self._options = {
            "size": size,
            "label": label,
            "cache_budget": cache_budget,
            "durability_interval": durability_interval,
            "umask": umask,
        }
        self._branch = branch
        self._path = None if isinstance(fo, Volume) else _local_path(fo)
        # The volume, and the branch of it that is shown, or the volume once more.
        self._whole: Volume | None = None
        self._volume: Volume | None = None
        if isinstance(fo, Volume):
            self._whole = fo
            self._volume = fo.open_branch(branch) if branch else fo
        self._pid = os.getpid()
        self.volume  # Opens it, so that a wrong path is an error here.

    @property
    def volume(self) -> Volume:
        """The open volume. One that was closed is opened again."""
        mine = self._pid == os.getpid()
        if self._volume is None or self._path is not None and (self._volume.closed or not mine):
            assert self._path is not None
            self._whole = _volumes.get(self._path, self._mode, self._options)
            whole = self._whole
            self._volume = whole.open_branch(self._branch) if self._branch else whole
            self._pid = os.getpid()
        return self._volume

    @property
    def fsid(self) -> str:
        uuid = self.volume.info()["uuid"]
        assert isinstance(uuid, bytes)
        return f"cairn_{uuid.hex()}"

    def close(self) -> None:
        """Writes everything and closes the volume, also for other file systems that share it."""
        if self._whole is not None:
            self._whole.close()

    def sync(self) -> None:
        """Makes everything durable."""
        self.volume.sync()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        name: str = stringify_path(path)
        name = name.removeprefix("cairn://").removeprefix("cairn:")
        return "/" + name.strip("/")

    # Looking

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.volume.lstat(path))

    def _info(self, path: str, st: Stat) -> dict[str, Any]:
        found: dict[str, Any] = {"islink": stat_bits.S_ISLNK(st.st_mode)}
        if found["islink"]:
            found["destination"] = self.volume.readlink(path)
            try:
                st = self.volume.stat(path)
            except OSError:
                pass
        kind = "other"
        if stat_bits.S_ISDIR(st.st_mode):
            kind = "directory"
        elif stat_bits.S_ISREG(st.st_mode):
            kind = "file"
        return {
            "name": path,
            "size": st.st_size if kind == "file" else 0,
            "type": kind,
            "created": st.st_birthtime,
            "mtime": st.st_mtime,
            "mode": st.st_mode,
            "uid": st.st_uid,
            "gid": st.st_gid,
            "ino": st.st_ino,
            "nlink": st.st_nlink,
            **found,
        }

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if not self.volume.isdir(path):
            info = self.info(path)
            return [info] if detail else [path]
        below = path.rstrip("/") + "/"
        if not detail:
            return [below + name for name in self.volume.listdir(path)]
        infos = []
        with self.volume.scandir(path, stat=True) as listing:
            for entry in listing:
                try:
                    infos.append(self._info(below + entry.name, entry.stat(follow_symlinks=False)))
                except FileNotFoundError:
                    pass
        return infos

    def exists(self, path: Any, **kwargs: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def lexists(self, path: Any, **kwargs: Any) -> bool:
        return self.volume.lexists(self._strip_protocol(path))

    def isfile(self, path: Any) -> bool:
        return self.volume.isfile(self._strip_protocol(path))

    def isdir(self, path: Any) -> bool:
        return self.volume.isdir(self._strip_protocol(path))

    def islink(self, path: Any) -> bool:
        return self.volume.islink(self._strip_protocol(path))

    def created(self, path: Any) -> datetime.datetime:
        return _utc(self.info(path)["created"])

    def modified(self, path: Any) -> datetime.datetime:
        return _utc(self.info(path)["mtime"])

    def ukey(self, path: Any) -> str:
        """Changes with each change of the file."""
        st = self.volume.stat(self._strip_protocol(path))
        return f"{self.fsid}-{st.st_ino}-{st.st_ctime_ns}-{st.st_size}"

    # Contents

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Any = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> IO[bytes]:
        path = self._strip_protocol(path)
        if mode[:1] in "wax":
            self._make_parent(path)
        size = block_size if isinstance(block_size, int) and block_size > 1 else -1
        if not autocommit and mode[:1] in "wax":
            return _Uncommitted(self.volume, path, mode)
        return self.volume.open(path, mode, size)

    def _make_parent(self, path: str) -> None:
        if self.auto_mkdir:
            self.volume.makedirs(self._parent(path), exist_ok=True)

    def cat_file(self, path: Any, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        if start is None and end is None:
            return self.volume.read_bytes(self._strip_protocol(path))
        content: bytes = super().cat_file(path, start, end, **kwargs)
        return content

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        if self._intrans or mode == "create":
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
        else:
            self.volume.write_bytes(path, value)

    def touch(self, path: Any, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.volume.touch(path)
        if truncate:
            self.volume.truncate(path, 0)

    def cp_file(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.volume.isdir(path1):
            self.volume.makedirs(path2, exist_ok=True)
        else:
            self.volume.copyfile(path1, path2)

    def get_file(
        self,
        rpath: Any,
        lpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        outfile: Any = None,
        **kwargs: Any,
    ) -> None:
        path = self._strip_protocol(rpath)
        if outfile is None and isfilelike(lpath):
            outfile = lpath
        if outfile is None and self.volume.isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.volume.open(path, "rb", 0) as source:
            callback.set_size(self.volume.getsize(path))
            if outfile is not None:
                _copy(source, outfile, callback)
                return
            parent = os.path.dirname(lpath)
            if parent:
                os.makedirs(parent, exist_ok=True)
            with open(lpath, "wb") as target:
                _copy(source, target, callback)

    def put_file(
        self,
        lpath: Any,
        rpath: Any,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        path = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.volume.makedirs(path, exist_ok=True)
            return
        with open(lpath, "rb") as source:
            callback.set_size(os.fstat(source.fileno()).st_size)
            if path != "/":
                self.volume.makedirs(self._parent(path), exist_ok=True)
            with self.open(path, "xb" if mode == "create" else "wb") as target:
                _copy(source, target, callback)

    # Names

    def mkdir(self, path: Any, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if create_parents:
            self.volume.makedirs(path)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: Any) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def rm_file(self, path: Any) -> None:
        self.volume.unlink(self._strip_protocol(path))

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for name in self.expand_path(path, recursive=False):
            if not self.volume.isdir(name) or self.volume.islink(name):
                self.volume.unlink(name)
            elif not recursive:
                raise ValueError(f"{name} is a directory: set recursive=True to remove it")
            elif name == "/":
                for below in self.ls(name, detail=False):
                    self.rm(below, recursive=True)
            else:
                self.volume.rmtree(name)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = True, maxdepth: Any = None, **kwargs: Any
    ) -> None:
        """Moves by renaming, whole, into path2 if that is a directory."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        self.volume.move(path1, path2)

    def link(self, src: Any, dst: Any, **kwargs: Any) -> None:
        self.volume.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src: Any, dst: Any, **kwargs: Any) -> None:
        self.volume.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def chmod(self, path: Any, mode: int) -> None:
        self.volume.chmod(self._strip_protocol(path), mode)


class _Uncommitted(io.BufferedWriter):
    """A file of a transaction: written beside its path, renamed to it by commit."""

    def __init__(self, volume: Volume, path: str, mode: str) -> None:
        self.path = path
        self._target = volume
        self._replaces = not mode.startswith("x")
        self._temporary = volume._beside(path)
        if mode.startswith("a") and volume.exists(path):
            volume.copy(path, self._temporary)
        raw = volume.open(self._temporary, mode, 0)
        super().__init__(raw)

    def commit(self) -> None:
        self.close()
        if self._replaces:
            self._target.rename(self._temporary, self.path)
        else:
            self._target.rename_noreplace(self._temporary, self.path)

    def discard(self) -> None:
        self.close()
        self._target.unlink(self._temporary)


def _local_path(fo: str | os.PathLike[str]) -> str:
    path = os.fspath(fo)
    for prefix in ("file://", "local://"):
        path = path.removeprefix(prefix)
    return os.path.expanduser(path)


def _utc(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)


def _copy(source: IO[bytes], target: IO[bytes], callback: Any) -> None:
    while data := source.read(_COPY_STEP):
        target.write(data)
        callback.relative_update(len(data))
