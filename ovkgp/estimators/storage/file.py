"""Model files: tensors and a JSON header in one safetensors file with a checksum, written atomically."""

from __future__ import annotations

import json
import os
from operator import methodcaller
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ovkgp.exceptions import InputError, ModelFileError
from ovkgp.files import digest, replace_file

FORMAT = "ovkgp"
FORMAT_VERSION = 5

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DTYPES += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def write_model(path: str | os.PathLike, tensors: dict[str, Tensor], header: dict) -> None:
    """Write tensors by name and a JSON header to one file, atomically; an existing file is replaced only if all succeeds."""
    stored = {name: _contiguous(name, tensor) for name, tensor in tensors.items()}
    text = _canonical(header)
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "header": text}
    metadata["sha256"] = digest(stored, FORMAT, FORMAT_VERSION, text)
    replace_file(path, methodcaller("write", save(stored, metadata)))


def read_model(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict]:
    """Read tensors, each in its own memory, and the header from a file of `write_model`, equal to the bit."""
    file = Path(os.fsdecode(path))
    if not file.exists():
        raise FileNotFoundError(f"There is no model file at {file}.")
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder. Pass the path of a model file.")
    data = file.read_bytes()
    tensors, metadata = _parse(data, file)
    version = _check_format(metadata, file)
    if digest(tensors, FORMAT, version, metadata.get("header", "")) != metadata.get("sha256"):
        raise ModelFileError(f"{file} was modified after it was written: its contents do not match its SHA-256.")
    try:
        header = json.loads(metadata["header"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} does not describe a fitted model: {error!r}.") from error
    if not isinstance(header, dict):
        raise ModelFileError(f"{file} does not describe a fitted model: its header is a {type(header).__name__}.")
    return {name: tensor.clone() for name, tensor in tensors.items()}, header


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


def _parse(data: bytes, file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file: eight bytes of length, JSON, numbers."""
    if not data:
        raise ModelFileError(f"{file} is empty.")
    try:
        tensors = load(data)
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
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


def prefixed(**groups: dict[str, Tensor]) -> dict[str, Tensor]:
    """Merge groups of tensors: `name` of group `prefix` becomes `prefix.name`."""
    return {f"{prefix}.{name}": tensor for prefix, group in groups.items() for name, tensor in group.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one group of `prefixed`."""
    head = f"{prefix}."
    return {name.removeprefix(head): tensor for name, tensor in tensors.items() if name.startswith(head)}
