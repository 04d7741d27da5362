"""Model files: tensors and a JSON header in one safetensors file with a checksum, written atomically.

A file stores every tensor in row-major order. Cholesky factors from LAPACK are column-major, and products with them are summed in
another order, so the order of the axes in memory is stored too: predictions of a loaded model are equal to the bit.
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
FORMAT_VERSION = 2

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DTYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def write_model(path: str | os.PathLike, tensors: dict[str, Tensor], header: dict) -> None:
    """Write tensors by name and a JSON header to one file, atomically; an existing file is replaced only if all succeeds."""
    stored = {name: _contiguous(name, tensor) for name, tensor in tensors.items()}
    text = _canonical(header)
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "header": text}
    metadata["sha256"] = _digest(FORMAT_VERSION, text, stored)
    replace_file(path, save(stored, metadata))


def read_model(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read tensors and header from a file of `write_model`, equal to the bit."""
    file = Path(os.fsdecode(path))
    if not file.exists():
        raise FileNotFoundError(f"There is no model file at {file}.")
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder. Pass the path of a model file.")
    data = file.read_bytes()
    tensors, metadata = _parse(data, file)
    version = _check_format(metadata, file)
    if _digest(version, metadata.get("header", ""), tensors) != metadata.get("sha256"):
        raise ModelFileError(f"{file} was modified after it was written: its contents do not match its SHA-256.")
    return tensors, json.loads(metadata["header"])


def _contiguous(name: str, tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU with its own storage, as safetensors requires."""
    if not isinstance(name, str) or not torch.is_tensor(tensor) or tensor.layout is not torch.strided:
        raise InputError(f"A model file holds dense tensors by name, got a {type(tensor).__name__} for {name!r}.")
    if tensor.dtype not in _DTYPES:
        raise InputError(f"A model file cannot hold tensors of {tensor.dtype}, got {name!r}.")
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _canonical(header: dict) -> str:
    try:
        return json.dumps(header, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InputError(f"The header of a model file must be JSON: {error}.") from error


def _digest(version: int, header: str, tensors: dict[str, Tensor]) -> str:
    names = sorted(tensors)
    table = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(_canonical([FORMAT, version, header, table]).encode())
    for name in names:
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _parse(data: bytes, file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file: eight bytes of length, JSON, numbers."""
    if not data:
        raise ModelFileError(f"{file} is empty.")
    try:
        tensors = load(data)
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{file} is not a model file, or is truncated ({error}).") from error
    return tensors, about.get("__metadata__", {})


def _check_format(metadata: dict[str, str], file: Path) -> int:
    if metadata.get("format") != FORMAT:
        raise ModelFileError(f"{file} is a safetensors file, but not a model written by {FORMAT}.")
    version = metadata.get("format_version", "")
    if not (version.isascii() and version.isdigit()):
        raise ModelFileError(f"{file} was modified: it has no valid format version.")
    if int(version) < FORMAT_VERSION:
        raise ModelFileError(
            f"{file} has format version {version}, and this version of {FORMAT} reads {FORMAT_VERSION}. Fit and save the model again."
        )
    if int(version) > FORMAT_VERSION:
        raise ModelFileError(
            f"{file} was written by a newer {FORMAT} (format version {version}, expected {FORMAT_VERSION}). Upgrade {FORMAT}."
        )
    return int(version)


def replace_file(target: str | os.PathLike, data: bytes) -> None:
    """Write a file atomically: to a temporary file in the same folder, which then replaces it.

    The mode of an existing file is kept; of a link, the file behind it is replaced. If writing fails, an existing file is unchanged.
    """
    target = Path(os.path.realpath(os.fsdecode(target)))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder. Pass the path of a file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} for {target.name}. Create it first.")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        _write(beside, data)
        if target.exists():
            shutil.copymode(target, beside)
        os.replace(beside, target)
    except PermissionError as error:
        raise PermissionError(f"The folder {target.parent} is not writable: {error}.") from error
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(target.parent)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the renaming survive a loss of power, on systems where a folder can be synchronized."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_memory_order(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Permute the axes of each tensor to their order in memory, and return the orders that are not the usual one."""
    orders = {name: order for name, tensor in tensors.items() if (order := _order(tensor)) is not None}
    return {name: t.permute(orders[name]) if name in orders else t for name, t in tensors.items()}, orders


def from_memory_order(tensors: dict[str, Tensor], orders: dict[str, list[int]]) -> dict[str, Tensor]:
    """Undo `to_memory_order`; each tensor gets its own memory, aligned as torch aligns results."""
    return {name: _permuted(tensor, orders.get(name)).clone() for name, tensor in tensors.items()}


def _order(tensor: Tensor) -> list[int] | None:
    """Return the axes from slowest to fastest; None if they are in order or the tensor has gaps."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return None if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def _permuted(tensor: Tensor, order: list[int] | None) -> Tensor:
    return tensor if order is None else tensor.permute([order.index(axis) for axis in range(tensor.dim())])


def prefixed(**groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Merge groups of tensors: `name` of group `prefix` becomes `prefix.name`."""
    return {f"{prefix}.{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one group of `prefixed`."""
    head = f"{prefix}."
    return {name.removeprefix(head): tensor for name, tensor in tensors.items() if name.startswith(head)}
