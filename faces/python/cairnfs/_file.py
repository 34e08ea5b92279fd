"""Files of a volume as file objects of io.

FileIO is to a volume what io.FileIO is to the system: unbuffered, and the raw part below the
buffers and text wrappers of io, which are used as they are.
"""

from __future__ import annotations

import io
import os
import warnings
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._native import File, Stat, Volume
    from ._types import StrOrBytesPath

Sync: TypeAlias = Literal["data", "all"] | None


class FileIO(io.RawIOBase):
    """An open file of a volume, without a buffer.

    mode is one of r, w, x and a, with + for reading and writing; perm are the permissions of a new
    file, without those in the volume's umask. sync="data" makes each write durable before it
    returns, like O_DSYNC; sync="all" also times and names, like O_SYNC.
    """

    name: str | bytes
    mode: str
    _file: File | None = None

    def __init__(
        self,
        volume: Volume,
        path: StrOrBytesPath,
        mode: str = "r",
        *,
        perm: int = 0o666,
        sync: Sync = None,
    ) -> None:
        kind, plus = _raw_mode(mode)
        self._reads = plus or kind == "r"
        self._writes = plus or kind != "r"
        file = volume._open(
            path,
            read=self._reads,
            write=self._writes and kind != "a",
            append=kind == "a",
            truncate=kind == "w",
            create=kind in "wa",
            exclusive=kind == "x",
            perm=perm,
            sync=sync,
        )
        # As io.FileIO names it.
        self._set(file, os.fspath(path), ("r" if kind == "w" and plus else kind) + "b" + "+" * plus)
        if kind == "a":
            file.seek(0, os.SEEK_END)

    @classmethod
    def temporary(cls, volume: Volume, dir: StrOrBytesPath = "/") -> FileIO:
        """A new file without a name, which is removed when it is closed."""
        file = cls.__new__(cls)
        file._reads = file._writes = True
        file._set(volume._open_temporary(dir), "", "rb+")
        return file

    def _set(self, file: File, name: str | bytes, mode: str) -> None:
        self._file, self.name, self.mode = file, name, mode

    def _opened(self) -> File:
        if self._file is None:
            raise ValueError("I/O operation on closed file")
        return self._file

    def _reading(self) -> File:
        file = self._opened()
        if not self._reads:
            raise io.UnsupportedOperation("File not open for reading")
        return file

    def _writing(self) -> File:
        file = self._opened()
        if not self._writes:
            raise io.UnsupportedOperation("File not open for writing")
        return file

    def readable(self) -> bool:
        self._opened()
        return self._reads

    def writable(self) -> bool:
        self._opened()
        return self._writes

    def seekable(self) -> bool:
        self._opened()
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        return self._reading().readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes:
        return self._reading().read(-1 if size is None else size)

    def readall(self) -> bytes:
        # As in io.FileIO, EBADF if it is not open for reading.
        return self._opened().read(-1)

    def write(self, data: Buffer, /) -> int:
        return self._writing().write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._opened().seek(offset, whence)

    def tell(self) -> int:
        return self._opened().tell()

    def truncate(self, size: int | None = None, /) -> int:
        file = self._writing()
        length = file.tell() if size is None else size
        file.truncate(length)
        return length

    def pread(self, size: int, offset: int) -> bytes:
        """Reads at most size bytes at an offset; the position stays."""
        return self._reading().pread(size, offset)

    def pwrite(self, data: Buffer, offset: int) -> int:
        """Writes at an offset; the position stays. The number of bytes."""
        return self._writing().pwrite(data, offset)

    def stat(self) -> Stat:
        """Metadata, like os.fstat."""
        return self._opened().stat()

    def fsync(self) -> None:
        """Makes data, attributes and names durable. Buffers above must be flushed before."""
        self._opened().fsync()

    def fdatasync(self) -> None:
        """Makes the data durable. Buffers above must be flushed before."""
        self._opened().fdatasync()

    def allocate(self, offset: int, length: int) -> None:
        """Allocates space for a range, like os.posix_fallocate."""
        self._writing().allocate(offset, length)

    def punch_hole(self, offset: int, length: int) -> None:
        """Makes a range read as zeros and frees its space; the size stays."""
        self._writing().punch_hole(offset, length)

    def close(self) -> None:
        """Closes the file; makes nothing durable."""
        file, self._file = self._file, None
        try:
            super().close()
        finally:
            if file is not None:
                file.close()

    def _dealloc_warn(self, source: object) -> None:
        """Called by the buffer above when that is not closed."""
        if self._file is not None:
            warnings.warn(f"unclosed file {source!r}", ResourceWarning, 2, source)

    def __del__(self) -> None:
        if self._file is not None:
            self._dealloc_warn(self)
            self.close()

    def __repr__(self) -> str:
        state = " [closed]" if self._file is None else f" name={self.name!r} mode={self.mode!r}"
        return f"<cairnfs.FileIO{state}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")


def _raw_mode(mode: str) -> tuple[str, bool]:
    """The kind of a mode (r, w, x or a), and whether it has a +."""
    letters = mode.replace("b", "", 1)
    kind = letters.replace("+", "", 1)
    if kind not in ("r", "w", "x", "a"):
        raise ValueError(f"invalid mode: {mode!r}")
    return kind, "+" in letters


def open_file(
    volume: Volume,
    path: StrOrBytesPath,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    perm: int,
    sync: Sync,
) -> IO[Any]:
    """Opens a file by the rules of the built-in open."""
    if not isinstance(mode, str):
        raise TypeError(f"mode should be str, not {type(mode).__name__}")
    binary = "b" in mode
    if binary and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    if binary and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode doesn't take encoding, errors or newline")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    raw = FileIO(volume, path, mode.replace("t", "", 1), perm=perm, sync=sync)
    try:
        return _wrap(raw, binary, buffering, encoding, errors, newline)
    except BaseException:
        raw.close()
        raise


def _wrap(
    raw: FileIO,
    binary: bool,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> IO[Any]:
    if buffering == 0:
        return raw  # type: ignore[return-value]
    lines = buffering == 1 and not binary
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffer: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
    if raw.readable() and raw.writable():
        buffer = io.BufferedRandom(raw, size)
    elif raw.writable():
        buffer = io.BufferedWriter(raw, size)
    else:
        buffer = io.BufferedReader(raw, size)
    if binary:
        return buffer
    return io.TextIOWrapper(buffer, encoding, errors, newline, lines)


def raw_of(file: object) -> FileIO:
    """The raw part of a file object of a volume; what its buffers hold is written first."""
    flush = getattr(file, "flush", None)
    if flush is not None:
        flush()
    for name in ("buffer", "raw"):
        file = getattr(file, name, file)
    if not isinstance(file, FileIO):
        raise TypeError(f"a file of a volume is needed, not {type(file).__name__}")
    return file
