"""Volume: an open volume, with the calls of os, os.path, pathlib and shutil.

What is one call of the library is in the native class; here is what consists of several.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat as stat_bits
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self, cast, overload

from ._file import FileIO, Sync, open_file, raw_of
from ._history import History
from ._native import Stat
from ._types import StrOrBytesPath

if TYPE_CHECKING:
    from typing_extensions import Buffer


class DiskUsage(NamedTuple):
    """Bytes of a volume, as from shutil.disk_usage."""

    total: int
    used: int
    free: int


class Volume(History):
    """An open volume: a tree of files in one file or block device.

    mode is "r" (read-only), "r+" (the default), "a" (created with size bytes if there is no file)
    or "x" (created; an existing file is an error). A path of None is a volume in memory.

    Options: label, of a new volume; branch, the branch or snapshot to open in place of main;
    cache_budget in bytes; durability_interval in seconds (None: only on request); umask of new
    files; owner, a pair of user and group (those of the process if not given); recovery=False, to
    save what a volume with a damaged log has.

    Paths are str, bytes or os.PathLike, and begin at the root of the volume, with or without a
    slash. Errors are those of os: OSError with errno and filename. A volume is open in one process
    at a time, unless all open it with "r". It can be used by many threads. It is a context
    manager, which closes it.
    """

    # A branch keeps the volume that it was opened from.
    _parent: Volume | None = None
    # The name by which it was opened, and the file of its volume, also once it is closed.
    _branch: str | None = None
    _file: str | bytes | None = None

    @property
    def _place(self) -> str | bytes | None:
        return self._file if self.name is None else self.name

    def __init__(self, *_args: object, **_options: object) -> None:
        _open_volumes.add(self)

    @classmethod
    def in_memory(cls, size: int, **options: Any) -> Self:
        """A new volume in memory, which ends with its last reference."""
        return cls(None, size=size, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        place = "in memory" if self._place is None else repr(self._place)
        branch = self._branch if self.closed else self.branch_name or self._branch
        shown = "" if branch in (None, "main") else f" branch={branch!r}"
        state = " closed" if self.closed else ""
        return f"<cairnfs.Volume {place}{shown}{state}>"

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle an open volume; open it by its path")

    # Branches

    def branch(self, name: str) -> Self:
        """Makes a branch and opens it: a tree that begins as this one is, and changes on its own.

        It is a Volume with the same options. sync and trim of it are those of the whole volume;
        close, and the end of with, close the branch for itself.
        """
        return self._branched(name, make=True)

    def open_branch(self, name: str) -> Self:
        """Opens a branch or snapshot by its name. A snapshot cannot be changed."""
        return self._branched(name, make=False)

    def _branched(self, name: str, make: bool) -> Self:
        if not isinstance(name, str):
            raise TypeError(f"the name of a branch should be str, not {type(name).__name__}")
        branch = type(self)(None, branch=name, _branch_of=self, _make=make)
        branch._parent = self
        branch._branch = name
        branch._file = self._place
        return branch

    def close(self) -> None:
        """Writes everything and closes the volume with its branches; a branch only for itself."""
        super().close()
        self._parent = None

    # Contents

    def open(
        self,
        path: StrOrBytesPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        perm: int = 0o666,
        sync: Sync = None,
    ) -> IO[Any]:
        """Opens a file like the built-in open; perm and sync as in FileIO."""
        return open_file(self, path, mode, buffering, encoding, errors, newline, perm, sync)

    def temporary_file(self, dir: StrOrBytesPath = "/") -> FileIO:
        """An unbuffered file without a name, for reading and writing."""
        return FileIO.temporary(self, dir)

    def read_text(
        self, path: StrOrBytesPath, encoding: str | None = None, errors: str | None = None
    ) -> str:
        with self.open(path, "r", -1, encoding, errors) as file:
            return cast(str, file.read())

    def write_text(
        self,
        path: StrOrBytesPath,
        data: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        with self.open(path, "w", -1, encoding, errors, newline) as file:
            return file.write(data)

    def replace_bytes(self, path: StrOrBytesPath, data: Buffer) -> int:
        """Like write_bytes, but a crash leaves all of the old or all of the new contents.

        Writes a new file beside the old one and renames it; the permissions stay.
        """
        temporary = self._beside(path)
        try:
            size = self.write_bytes(temporary, data)
            try:
                self.chmod(temporary, stat_bits.S_IMODE(self.stat(path).st_mode))
            except FileNotFoundError:
                pass
            self.rename(temporary, path)
        except BaseException:
            self._remove_quietly(temporary)
            raise
        return size

    def _beside(self, path: StrOrBytesPath) -> str:
        directory = os.path.dirname(os.fsdecode(path))
        return os.path.join(directory, f".{os.urandom(12).hex()}.tmp")

    def _remove_quietly(self, path: str) -> None:
        try:
            self.unlink(path)
        except OSError:
            pass

    def fsync(self, file: object) -> None:
        """Writes what a file object of this volume buffers, and makes the file durable."""
        raw_of(file).fsync()

    def fdatasync(self, file: object) -> None:
        """Like fsync, for the data only."""
        raw_of(file).fdatasync()

    def touch(self, path: StrOrBytesPath, mode: int = 0o666, exist_ok: bool = True) -> None:
        if exist_ok:
            try:
                self.utime(path)
                return
            except FileNotFoundError:
                pass
        FileIO(self, path, "a" if exist_ok else "x", perm=mode).close()

    # Names

    def makedirs(
        self, path: StrOrBytesPath, mode: int = 0o777, exist_ok: bool = False
    ) -> None:
        """Creates a directory and all missing ones on its path, like os.makedirs."""
        name = os.fsdecode(path)
        head, tail = os.path.split(name.rstrip("/"))
        if head and tail and not self.exists(head):
            try:
                self.makedirs(head, exist_ok=exist_ok)
            except FileExistsError:
                pass
            if tail == os.curdir:
                return
        try:
            self.mkdir(path, mode)
        except OSError:
            if not exist_ok or not self.isdir(path):
                raise

    def mkfifo(self, path: StrOrBytesPath, mode: int = 0o666) -> None:
        self.mknod(path, stat_bits.S_IFIFO | stat_bits.S_IMODE(mode))

    @overload
    def walk(
        self,
        top: str | os.PathLike[str] = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]: ...
    @overload
    def walk(
        self,
        top: bytes | os.PathLike[bytes],
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]: ...
    def walk(
        self,
        top: Any = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """Directories with the names in them, like os.walk."""
        path = os.fspath(top)
        try:
            dirs, files = self._walk_level(path)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        if topdown:
            yield path, dirs, files
        for name in dirs:
            below = os.path.join(path, name)
            if followlinks or not self.islink(below):
                yield from self.walk(below, topdown, onerror, followlinks)
        if not topdown:
            yield path, dirs, files

    # Attributes

    def lchown(self, path: StrOrBytesPath, uid: int, gid: int) -> None:
        self.chown(path, uid, gid, follow_symlinks=False)

    def utime(
        self,
        path: StrOrBytesPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if ns is not None:
            atime, mtime = _pair(ns, "ns")
        elif times is not None:
            atime, mtime = map(_nanoseconds, _pair(times, "times"))
        else:
            atime = mtime = time.time_ns()
        self._utime(path, atime, mtime, follow_symlinks)

    def getsize(self, path: StrOrBytesPath) -> int:
        return self.stat(path).st_size

    def getmtime(self, path: StrOrBytesPath) -> float:
        return self.stat(path).st_mtime

    def samefile(self, path: StrOrBytesPath, other: StrOrBytesPath) -> bool:
        return self.stat(path).st_ino == self.stat(other).st_ino

    def statvfs(self, path: StrOrBytesPath = "/") -> os.statvfs_result:
        """Sizes of the volume; the path must exist."""
        self.stat(path)
        return os.statvfs_result(tuple(self._statvfs()))

    def disk_usage(self, path: StrOrBytesPath = "/") -> DiskUsage:
        """Bytes of the volume, like shutil.disk_usage."""
        s = self.statvfs(path)
        total, free = s.f_blocks * s.f_frsize, s.f_bavail * s.f_frsize
        return DiskUsage(total, (s.f_blocks - s.f_bfree) * s.f_frsize, free)

    # Trees and copies

    def copyfile(
        self, src: StrOrBytesPath, dst: StrOrBytesPath, *, follow_symlinks: bool = True
    ) -> StrOrBytesPath:
        """Copies contents; holes stay holes. dst keeps its permissions, or gets those of a new file."""
        if not follow_symlinks and self.islink(src):
            self.symlink(self.readlink(src), dst)
            return dst
        old = self._check_copy(src, dst)
        self._copy_to(src, dst)
        mode = 0o666 & ~self.umask if old is None else stat_bits.S_IMODE(old.st_mode)
        self.chmod(dst, mode)
        return dst

    def copy(
        self, src: StrOrBytesPath, dst: StrOrBytesPath, *, follow_symlinks: bool = True
    ) -> StrOrBytesPath:
        """Copies contents and permissions, into dst if that is a directory."""
        dst = self._into(os.fsdecode(src), dst)
        if not follow_symlinks and self.islink(src):
            return self.copyfile(src, dst, follow_symlinks=False)
        self._check_copy(src, dst)
        self._copy_to(src, dst)
        return dst

    def copy2(
        self, src: StrOrBytesPath, dst: StrOrBytesPath, *, follow_symlinks: bool = True
    ) -> StrOrBytesPath:
        """Copies contents, permissions, times and extended attributes."""
        dst = self.copy(src, dst, follow_symlinks=follow_symlinks)
        self.copystat(src, dst, follow_symlinks=follow_symlinks)
        return dst

    def copystat(
        self, src: StrOrBytesPath, dst: StrOrBytesPath, *, follow_symlinks: bool = True
    ) -> None:
        """Copies permissions, times and extended attributes."""
        st = self.stat(src, follow_symlinks=follow_symlinks)
        if follow_symlinks or not stat_bits.S_ISLNK(st.st_mode):
            for name in self.listxattr(src):
                self.setxattr(dst, name, self.getxattr(src, name))
            self.chmod(dst, stat_bits.S_IMODE(st.st_mode))
        times = (st.st_atime_ns, st.st_mtime_ns)
        self.utime(dst, ns=times, follow_symlinks=follow_symlinks)

    def copytree(
        self,
        src: StrOrBytesPath,
        dst: StrOrBytesPath,
        symlinks: bool = False,
        ignore: Callable[[str, list[str]], Any] | None = None,
        dirs_exist_ok: bool = False,
    ) -> StrOrBytesPath:
        """Copies a tree; everything by copy2, as shutil.copytree does."""
        source, target = os.fsdecode(src), os.fsdecode(dst)
        with self.scandir(source) as listing:
            entries = list(listing)
        names = [entry.name for entry in entries]
        left_out = frozenset(ignore(source, names)) if ignore is not None else frozenset()
        self.makedirs(target, exist_ok=dirs_exist_ok)
        for entry in entries:
            if entry.name in left_out:
                continue
            to = os.path.join(target, entry.name)
            if symlinks and entry.is_symlink():
                self.symlink(self.readlink(entry.path), to)
                self.copystat(entry.path, to, follow_symlinks=False)
            elif entry.is_dir():
                self.copytree(entry.path, to, symlinks, ignore, dirs_exist_ok)
            else:
                self.copy2(entry.path, to)
        self.copystat(source, target)
        return dst

    def rmtree(self, path: StrOrBytesPath, ignore_errors: bool = False) -> None:
        """Removes a directory with everything in it."""
        try:
            if self.islink(path):
                raise OSError("Cannot call rmtree on a symbolic link")
            self._remove_tree(path)
        except OSError:
            if not ignore_errors:
                raise

    def move(self, src: StrOrBytesPath, dst: StrOrBytesPath) -> StrOrBytesPath:
        """Renames, into dst if that is a directory, like shutil.move."""
        target = dst
        if self.isdir(dst) and not (self.isdir(src) and self.samefile(src, dst)):
            target = self._into(os.fsdecode(src).rstrip("/"), dst)
            if self.exists(target):
                raise shutil.Error(f"Destination path {os.fsdecode(target)!r} already exists")
        self.rename(src, target)
        return target

    def _into(self, src: str, dst: StrOrBytesPath) -> StrOrBytesPath:
        if not self.isdir(dst):
            return dst
        return os.path.join(os.fsdecode(dst), os.path.basename(src))

    def _check_copy(self, src: StrOrBytesPath, dst: StrOrBytesPath) -> Stat | None:
        """Refuses what cannot be copied, as shutil does; what dst leads to."""
        ours, old = self._stat_quietly(src), self._stat_quietly(dst)
        if ours is not None and old is not None and ours.st_ino == old.st_ino:
            message = f"{os.fsdecode(src)!r} and {os.fsdecode(dst)!r} are the same file"
            raise shutil.SameFileError(message)
        for path, st in ((src, ours), (dst, old)):
            if st is not None and stat_bits.S_ISFIFO(st.st_mode):
                raise shutil.SpecialFileError(f"`{os.fsdecode(path)}` is a named pipe")
        FileIO(self, src).close()
        return old

    def _stat_quietly(self, path: StrOrBytesPath) -> Stat | None:
        try:
            return self.stat(path)
        except OSError:
            return None

    def _copy_to(self, src: StrOrBytesPath, dst: StrOrBytesPath) -> None:
        try:
            self._copy(src, dst)
        except IsADirectoryError as error:
            if self.exists(dst):
                raise
            raise FileNotFoundError(f"Directory does not exist: {os.fsdecode(dst)}") from error


def _pair(times: object, name: str) -> tuple[Any, Any]:
    if not isinstance(times, tuple) or len(times) != 2:
        raise TypeError(f"utime: {name!r} must be a tuple of two numbers")
    return times


def _nanoseconds(seconds: float) -> int:
    whole, part = divmod(seconds, 1)
    return int(whole) * 10**9 + int(part * 10**9)


_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


def _sync_at_exit() -> None:
    """Makes durable what a program that ends leaves open. Files are closed after this."""
    for volume in list(_open_volumes):
        if not volume.closed and not volume.read_only:
            volume.sync()


atexit.register(_sync_at_exit)
os.register_at_fork(after_in_child=_open_volumes.clear)
