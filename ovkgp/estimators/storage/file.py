"""Tensors by name, with the order of their axes in memory.

A file holds every tensor row by row. A Cholesky factor from LAPACK lies column by column, and products with it are summed in
another order: the last bits of a prediction depend on it. So the order of the axes is stored beside the numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ovkgp.exceptions import InputError, ModelFileError

FORMAT = "ovkgp"
FORMAT_VERSION = 1

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DTYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def write_model(path: str | os.PathLike, tensors: dict[str, Tensor], header: dict) -> None:
    """Write tensors and a header to one file, all or nothing.

    Args:
        path: where; the folder must exist, a file of this name is replaced. Of a link, the file behind it.
        tensors: by name, of any shape and real dtype, contiguous or not.
        header: what JSON can hold: strings as keys; tuples come back as lists.

    Raises:
        InputError: a tensor or the header cannot be stored.
        OSError: the folder is missing or not writable, or the disk is full; an older file is then untouched.

    Cost: the file's size in memory twice, one pass to hash and one to write it.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from ovkgp.estimators.storage.file import read_model, write_model
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_model(Path(folder) / "model.ovkgp", {"weights": torch.ones(3)}, {"kind": "demo"})
        ...     read_model(Path(folder) / "model.ovkgp")
        ({'weights': tensor([1., 1., 1.])}, {'kind': 'demo'})
    """
    plain = {name: _plain(name, tensor) for name, tensor in tensors.items()}
    text = _canonical(header)
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "header": text}
    metadata["sha256"] = _digest(FORMAT_VERSION, text, plain)
    replace_file(path, save(plain, metadata))


def read_model(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read what `write_model` wrote, bit for bit.

    Args:
        path: the file.

    Returns:
        The tensors by name, on the processor, and the header.

    Raises:
        FileNotFoundError: there is no such file.
        ModelFileError: it is no model of this package, of a newer format, cut short, or changed.

    Cost: the file's size in memory twice, one pass to read and one to hash it.

    Example:
        See `write_model`.
    """
    file = Path(os.fsdecode(path))
    if not file.exists():
        raise FileNotFoundError(f"there is no model file at {file}.")
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder; give the path of a model file.")
    data = file.read_bytes()
    tensors, metadata = _parse(data, file)
    version = _require_format(metadata, file)
    if _digest(version, metadata.get("header", ""), tensors) != metadata.get("sha256"):
        raise ModelFileError(f"{file} was changed after it was written: its contents do not fit its SHA-256.")
    return tensors, json.loads(metadata["header"])


def _plain(name: str, tensor: Tensor) -> Tensor:
    """A contiguous copy on the processor, with storage of its own as safetensors wants it."""
    if not isinstance(name, str) or not torch.is_tensor(tensor) or tensor.layout is not torch.strided:
        raise InputError(f"a model file holds dense tensors by name; {name!r} is a {type(tensor).__name__}.")
    if tensor.dtype not in _DTYPES:
        raise InputError(f"a model file cannot hold tensors of {tensor.dtype}, such as {name!r}.")
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _canonical(header: dict) -> str:
    try:
        return json.dumps(header, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"the header of a model file must be plain JSON: {error}.") from error


def _digest(version: int, header: str, tensors: dict[str, Tensor]) -> str:
    names = sorted(tensors)
    table = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(_canonical([FORMAT, version, header, table]).encode())
    for name in names:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _parse(data: bytes, file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file: eight bytes of length, JSON, numbers."""
    if not data:
        raise ModelFileError(f"{file} is empty: it was never written, or lost its contents.")
    try:
        tensors = load(data)
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{file} is not a model file, or was cut short ({error}).") from error
    return tensors, about.get("__metadata__", {})


def _require_format(metadata: dict[str, str], file: Path) -> int:
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{file} is a safetensors file, but not a model written by {FORMAT}.")
    version = metadata.get("format_version", "")
    if not (version.isascii() and version.isdigit()):
        raise ModelFileError(f"{file} does not say which version of the format it has; it was changed.")
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{file} was written by a newer {FORMAT} (format {version}; this one reads up to {FORMAT_VERSION}): upgrade."
        )
    return int(version)


def replace_file(target: str | os.PathLike, data: bytes) -> None:
    """Put `data` at `target` in one step: a new file beside it, on the disk, then renamed.

    Args:
        target: where; the folder must exist, a file of this name is replaced and its mode kept. Of a link, the file behind it.
        data: all of the file.

    Raises:
        OSError: the folder is missing or not writable, or the disk is full; an older file is then untouched.

    Cost: one pass to write it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from ovkgp.estimators.storage.file import replace_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     replace_file(Path(folder) / "page.html", b"<p>whole</p>")
        ...     (Path(folder) / "page.html").read_text()
        '<p>whole</p>'
    """
    target = Path(os.path.realpath(os.fsdecode(target)))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; give the path of a file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} to; make it first.")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        _write(beside, data)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    except PermissionError as error:
        raise PermissionError(f"may not write to the folder {target.parent}: {error}.") from error
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the renaming outlive a loss of power, on systems where a folder can be synchronised."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unrolled(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Each tensor with its axes in the order in which they lie in memory, and that order where it is not the usual one.

    Example:
        >>> import torch
        >>> from ovkgp.estimators.storage.file import rolled, unrolled
        >>> tensors, orders = unrolled({"columns": torch.ones(2, 3).mT, "rows": torch.ones(2, 3)})
        >>> orders, rolled(tensors, orders)["columns"].stride()
        ({'columns': [1, 0]}, (1, 3))
    """
    orders = {name: order for name, tensor in tensors.items() if (order := _order(tensor)) is not None}
    return {name: t.permute(orders[name]) if name in orders else t for name, t in tensors.items()}, orders


def rolled(tensors: dict[str, Tensor], orders: dict[str, list[int]]) -> dict[str, Tensor]:
    """The inverse of `unrolled`, each tensor in memory of its own, aligned as torch aligns what it computes."""
    return {name: _turned(tensor, orders.get(name)).clone() for name, tensor in tensors.items()}


def _order(tensor: Tensor) -> list[int] | None:
    """The axes from the slowest to the fastest; None where they are in order, or where the tensor has gaps."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return None if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def _turned(tensor: Tensor, order: list[int] | None) -> Tensor:
    return tensor if order is None else tensor.permute([order.index(axis) for axis in range(tensor.dim())])


def prefixed(**groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Groups of tensors as one: `name` of group `prefix` becomes `prefix.name`."""
    return {f"{prefix}.{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """One group out of `prefixed`."""
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
