"""A file as it was when it was first looked at.

Parts of a table that are read at different times belong together only if the file stayed as it was. A `Snapshot` remembers
its size and its time of change, and refuses to go on with another.
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
    """A regular file that can be read, with its size in bytes and the time of its last change in nanoseconds."""

    path: Path
    size: int
    changed: int

    @classmethod
    def of(cls, path: str | os.PathLike) -> Snapshot:
        """Look at a file: it must exist, be a file and be readable."""
        path = Path(path).expanduser()
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"there is no file '{path}' (looked from the folder '{Path.cwd()}').") from None
        if stat.S_ISDIR(status.st_mode):
            raise OptionError(f"'{path}' is a folder: name one file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise OptionError(f"'{path}' is a pipe or a device, which cannot be read twice: save it as a file.")
        with open(path, "rb") as file:  # a PermissionError now rather than in the middle of a pass
            status = os.fstat(file.fileno())
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self, file: BinaryIO) -> None:
        """Raise if the open file is not as it was."""
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (self.size, self.changed):
            raise InputError(
                f"'{self.path}' was changed after the stream was made ({self.size} bytes then, {status.st_size} now): "
                "let it be written to the end, then make a new stream."
            )
