"""Detection of files that change between two reads.

A table is read in several passes, which belong together only if the file stays unchanged.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ovkgp.exceptions import InputError, OptionError


@dataclass(frozen=True)
class Snapshot:
    """Readable regular file, with its size in bytes and the time of its last modification in nanoseconds."""

    path: Path
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: str | os.PathLike) -> Snapshot:
        """Record the size and the time of a file; raise unless it is a readable regular file."""
        path = Path(path).expanduser()
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"there is no file '{path}' (looked from the folder '{Path.cwd()}').") from None
        if stat.S_ISDIR(status.st_mode):
            raise OptionError(f"'{path}' is a folder: name one file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise OptionError(f"'{path}' is a pipe or a device, which cannot be read twice. Save it as a file.")
        with open(path, "rb") as file:  # a PermissionError now rather than in the middle of a pass
            status = os.fstat(file.fileno())
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self, file: BinaryIO) -> None:
        """Raise InputError if the open file was modified since the snapshot."""
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified_ns):
            raise InputError(
                f"'{self.path}' was changed after the stream was made ({self.size} bytes then, {status.st_size} now). Wait until it is written completely, then make a new stream."
            )
