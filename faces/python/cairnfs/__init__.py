"""A crash-safe file system in one file, with the calls of os, pathlib and shutil.

>>> import cairnfs
>>> with cairnfs.Volume.in_memory(64 << 20) as volume:
...     volume.makedirs("2024/march")
...     _ = volume.write_text("2024/march/todo", "water the plants")
...     volume.listdir("2024")
['march']
"""

from ._file import FileIO
from ._history import (
    AttributeChange,
    Change,
    Conflict,
    ConflictError,
    Published,
    Root,
    XattrChange,
)
from ._native import DirEntry, ScanDir, Sequence, Stat, __version__
from ._volume import DiskUsage, Volume

__all__ = [
    "AttributeChange",
    "Change",
    "Conflict",
    "ConflictError",
    "DirEntry",
    "DiskUsage",
    "FileIO",
    "Published",
    "Root",
    "ScanDir",
    "Sequence",
    "Stat",
    "Volume",
    "XattrChange",
    "__version__",
]
