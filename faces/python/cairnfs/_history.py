"""Branches and snapshots of a volume as a whole: listed, compared, published, restored, dropped, sent.

The calls are in the native module and return tuples; here they get names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import IO, Any, NamedTuple

from . import _native
from ._types import StrOrBytesPath


class Root(NamedTuple):
    """A branch or snapshot of a volume."""

    id: int
    """Its number, which no other one ever gets."""
    name: str | None
    """Its name; None of what only others still need, or what is being dropped."""
    parent: int | None
    """The id of the state that it began with."""
    writable: bool
    """Whether it is a branch; otherwise it is a snapshot."""
    created_ns: int
    """Nanoseconds since 1970; 0 of the main branch of a volume that never had a snapshot."""
    being_dropped: bool
    """Whether it goes as soon as nobody reads it."""


class AttributeChange(NamedTuple):
    """An attribute that differs: mode, uid, gid, flags, rdev, size, or mtime in nanoseconds."""

    name: str
    old: int
    new: int


class XattrChange(NamedTuple):
    """An extended attribute that differs: status is "added", "removed" or "changed"."""

    name: str
    status: str


class Change(NamedTuple):
    """A file that differs between two states."""

    status: str
    """ "added", "removed", "renamed" or "changed"."""
    path: str
    """Its path in the new state, or in the old one if it is not in the new one; no slash before it."""
    old_paths: list[str]
    """Paths that only the old state has."""
    new_paths: list[str]
    """Paths that only the new state has."""
    ino: int
    old_ino: int | None
    """Inode number in the old state, if another file has replaced the one of this path."""
    mode: int
    """The type, as stat.S_IFMT(st_mode)."""
    size: int
    written: int
    """Bytes that were written of what changed: no holes, nothing that was cut off."""
    contents: list[tuple[int, int]]
    """The ranges that differ, or that an added file has."""
    attributes: list[AttributeChange]
    xattrs: list[XattrChange]


class Conflict(NamedTuple):
    """Changes of a branch and of its base that exclude each other."""

    path: str
    why: str


class Published(NamedTuple):
    """What a publish did."""

    kept: str | None
    """The snapshot of the state before; None of a dry run."""
    merged: bool
    """Whether the base had changed since the branch began, so that changes were merged.

    Of a dry run, whether they would be; False if there are conflicts.
    """
    conflicts: list[Conflict]
    """Of a dry run, what would have to be decided."""


class ConflictError(OSError):
    """A publish met conflicts, and nothing was changed. conflicts has all of them."""

    def __init__(self, conflicts: list[Conflict]) -> None:
        first = conflicts[0]
        super().__init__(
            errno.ECANCELED,
            f"nothing was published because of conflicts: {len(conflicts)}; "
            f"the first at {first.path}: {first.why}; choose a side with ours= or theirs=",
        )
        self.conflicts = conflicts

    def __reduce__(self) -> Any:
        return type(self), (self.conflicts,)


class History(_native.Volume):
    """The calls of Volume on branches and snapshots as a whole.

    Where one of them takes a state, it takes a name, BRANCH@SNAPSHOT, or BRANCH@TIME: the newest
    snapshot in the history of the branch that is as old ("10:30", "2026-01-31T10:30", "-5m").
    """

    def roots(self) -> list[Root]:
        """All branches and snapshots, also those without a name, in order of their ids."""
        return [Root(*root) for root in _native._roots(self)]

    def find_root(self, reference: str) -> Root:
        """The branch or snapshot of a reference."""
        return Root(*_native._find_root(self, reference))

    def space_of(self, reference: str) -> int:
        """Bytes that belong to a state alone: what dropping it frees."""
        return _native._space_of(self, self.find_root(reference).id)

    def diff(self, old: str, new: str, *, since_fork: bool = False) -> list[Change]:
        """The files that differ from the state old to the state new, sorted by path.

        With since_fork, old is the state in which new has parted from it: what was done in new
        alone. It takes as long as there are differences, not files.
        """
        return [
            Change(
                *change[:10],
                [AttributeChange(*attribute) for attribute in change[10]],
                [XattrChange(*xattr) for xattr in change[11]],
            )
            for change in _native._diff(self, old, new, since_fork)
        ]

    def publish(
        self,
        branch: str,
        onto: str = "main",
        *,
        ours: Iterable[StrOrBytesPath] = (),
        theirs: Iterable[StrOrBytesPath] = (),
        dry_run: bool = False,
    ) -> Published:
        """Makes the files of a branch those of onto, in one atomic step; the branch is gone then.

        If onto has changed since the branch began, the changes of both are merged by files.
        Conflicts raise ConflictError, and nothing is changed; at and below the paths of ours and
        theirs the state of onto or of the branch is taken. A Volume that was opened on onto before
        keeps its old files and refuses changes: open the branch again.
        """
        kept, merged, found = _native._publish(
            self, branch, onto, _paths(ours), _paths(theirs), dry_run
        )
        conflicts = [Conflict(*conflict) for conflict in found]
        if conflicts and not dry_run:
            raise ConflictError(conflicts)
        return Published(kept, merged, conflicts)

    def restore(
        self, reference: str, branch: str = "main", paths: Iterable[StrOrBytesPath] = ()
    ) -> str:
        """Makes the files of a branch those of a state, in one atomic step.

        With paths, only the files at and below these. Returns the name of the snapshot of the state
        before, so that this can be taken back.
        """
        return _native._restore(self, reference, branch, _paths(paths))

    def drop(
        self,
        *references: str,
        wait: bool = False,
        progress: Callable[[int, float], object] | None = None,
    ) -> None:
        """Drops branches and snapshots. Their names are gone when this returns.

        Their space is freed in the background; with wait, or a progress function, when this returns.
        progress gets how many are left to free, and the part of the first one that is done; if it
        returns False, the rest is left to the background. One that is open is not dropped: close it.
        """
        for reference in references:
            _native._drop_root(self, reference)
        if wait or progress is not None:
            _native._free_drops(self, progress)

    def send(self, file: IO[bytes], snapshot: str, base: str | None = None) -> None:
        """Writes a snapshot to a binary file object, as a stream that receive reads.

        As a whole, or as the changes from the snapshot base, which the receiver must have.
        """
        _native._send(self, file, snapshot, base)

    def receive(self, file: IO[bytes], name: str | None = None) -> str:
        """Makes a durable snapshot of a stream, to the end of the file object; returns its name.

        Without a name it gets one made of the time. If this fails, nothing is left of the stream.
        """
        return _native._receive(self, file, name)


def _paths(paths: Iterable[StrOrBytesPath]) -> list[StrOrBytesPath]:
    if isinstance(paths, (str, bytes, os.PathLike)):
        raise TypeError("an iterable of paths is needed, not one path")
    return list(paths)
