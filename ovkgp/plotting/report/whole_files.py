"""A file is there whole or not at all: it is written beside its place under another name, and renamed."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def require_place(path: str | os.PathLike) -> Path:
    """A path at which a file can be written, before anything is computed for it.

    Raises:
        OSError: it is a folder, or its folder does not exist or may not be written to.
    """
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name a file in it, such as {target / 'report.html'}.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} to; make it first.")
    if not os.access(target.parent, os.W_OK):
        raise PermissionError(f"may not write to the folder {target.parent}; write the report elsewhere.")
    return target


def replace_file(target: Path, text: str) -> None:
    """Put a text in its place in one step; an older file stays where that fails."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
