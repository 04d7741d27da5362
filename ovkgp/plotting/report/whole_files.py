"""The place of a page: whether a file can be written there is asked before anything is computed for it."""

from __future__ import annotations

import os
from pathlib import Path


def require_place(path: str | os.PathLike) -> Path:
    """A path at which a file can be written; of a link, the file behind it counts.

    Raises:
        OSError: it is a folder, or its folder does not exist or may not be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file in it, such as {target / 'report.html'}.")
    folder = Path(os.path.realpath(target)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to write {target.name} to; make it first.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"may not write to the folder {folder}; write the report elsewhere.")
    return target
