"""Files: atomic writes, checksums of tensors, and detection of changes between two reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    from torch import Tensor


def replace_file(path: str | os.PathLike, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: `write(file)` fills a temporary file in the same folder, which then replaces it.

    The mode of an existing file is kept; of a link, the file behind it is replaced. If writing fails, an existing file
    is unchanged. Temporary files of this file that killed processes left behind are removed.
    """
    target = Path(os.path.realpath(check_writable(path)))
    _remove_abandoned(target)
    beside = target.with_name(f".{target.name}.{_host()}-{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        with open(beside, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some systems cannot synchronize a folder
        folder = os.open(target.parent, os.O_RDONLY)  # so that the renaming survives a loss of power
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _host() -> str:
    """Return the name of this machine, in characters that any file name may have."""
    return re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:40]


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files of processes of this machine that have ended."""
    form = re.compile(rf"\.{re.escape(target.name)}\.{_host()}-([0-9]+)-[0-9a-f]{{16}}\.tmp")
    for file in target.parent.iterdir():
        if (match := form.fullmatch(file.name)) and not _is_running(int(match[1])):
            with contextlib.suppress(OSError):  # another process was faster, or owns it
                file.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def check_writable(path: str | os.PathLike) -> Path:
    """Check that a file can be written at `path` (of a link, at its target), and leave nothing behind."""
    target = Path(os.path.realpath(os.fsdecode(path)))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder. Pass the path of a file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} for {target.name}. Create it first.")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            return Path(os.fsdecode(path))
    except PermissionError as error:
        raise PermissionError(f"The folder {target.parent} is not writable: {error}.") from error


def check_path(name: str, path: str | os.PathLike) -> Path:
    """Return the path of an argument `name`; raise InputError if no file can be written there."""
    try:
        return check_writable(path)
    except OSError as error:
        raise InputError(f"{name} must be a path that can be written. {error}") from error


def digest(tensors: Mapping[str, Tensor], *texts: str | int) -> str:
    """Return the SHA-256 of texts and of the names, types, shapes and contents of tensors."""
    import torch

    table = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in sorted(tensors)]
    found = hashlib.sha256(json.dumps([*texts, table], separators=(",", ":")).encode())
    for name, *_ in table:
        found.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


@dataclass(frozen=True)
class Snapshot:
    """Readable regular file, with its size in bytes and the time of its last modification in nanoseconds.

    A table is read in several passes, which belong together only if the file stays unchanged.
    """

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
