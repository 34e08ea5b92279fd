"""The programs in the documents run as written."""

import os
import re
from pathlib import Path

import pytest

from cairnfs.fsspec import CairnFileSystem

ROOT = Path(__file__).resolve().parents[3]


def programs() -> list[tuple[str, str]]:
    return [
        (f"{name} {number}", code)
        for name in ("docs/languages.md", "docs/python.md", "faces/python/README.md")
        for number, code in enumerate(
            re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
        )
    ]


def test_documents_have_programs() -> None:
    assert len(programs()) == 8


@pytest.mark.parametrize(("name", "code"), programs())
def test_program_runs(tmp_path: Path, name: str, code: str) -> None:
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        exec(compile(code, name, "exec"), {})
    finally:
        os.chdir(here)
        CairnFileSystem.clear_instance_cache()
