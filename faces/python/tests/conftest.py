"""What the tests share: volumes in memory and in files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import cairnfs

SIZE = 64 << 20


@pytest.fixture
def volume() -> Iterator[cairnfs.Volume]:
    """A volume in memory."""
    with cairnfs.Volume.in_memory(SIZE) as volume:
        yield volume


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The path of a new volume, which is closed."""
    path = tmp_path / "vol.img"
    cairnfs.Volume(path, "x", size=SIZE).close()
    return path
