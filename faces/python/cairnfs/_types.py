"""Names of types that several modules use."""

import os
from typing import TypeAlias

StrPath: TypeAlias = str | os.PathLike[str]
BytesPath: TypeAlias = bytes | os.PathLike[bytes]
StrOrBytesPath: TypeAlias = StrPath | BytesPath
