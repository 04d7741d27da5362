"""Checkpoints: the progress of a training in one safetensors file, which is replaced atomically.

The tensors are raw parameters (`start/…`, `current/…`, `best/…`); counters, finished restarts and the seed are JSON in
the metadata, with a signature of the problem and a SHA-256 of the rest. Reading executes no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ovkgp.exceptions import InputError

FORMAT = "ovkgp-training-1"
STATES = ("start", "current", "best")


@dataclass
class Progress:
    """Everything needed to resume a training.

    `start`, `current` and `best` are raw parameters by name: the state that restarts perturb, the best of the current
    restart, and the best of all. `finished` has a dictionary (objective, iterations, converged, message, gradient_norm)
    per finished restart. With the index of a restart, `seed` gives its random numbers. Other fields are as in
    `FitReport`.
    """

    seed: int
    start: dict[str, Tensor] = field(default_factory=dict)
    current: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    best_value: float | None = None
    current_iterations: int = 0
    finished: list[dict] = field(default_factory=list)
    evaluations: int = 0
    failures: int = 0
    seconds: float = 0.0
    history: list[float] = field(default_factory=list)
    done: bool = False


def problem_signature(state: Mapping[str, Tensor], data: str = "") -> str:
    """Return names and shapes of the parameters and a fingerprint of the data as one line of JSON."""
    shapes = {name: list(value.shape) for name, value in state.items()}
    return json.dumps({"data": data, "parameters": shapes}, sort_keys=True)


def check_writable(path: str | os.PathLike) -> Path:
    """Check that a file can be written at `path`, and leave nothing behind."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise InputError(f"{path} is not writable: {error}. Give a file in an existing, writable folder.") from error


def write_progress(path: Path, progress: Progress, signature: str) -> None:
    """Replace the file at `path` by `progress`, completely or not at all."""
    numbers = asdict(progress)
    tensors = {f"{kind}/{name}": value.contiguous() for kind in STATES for name, value in numbers.pop(kind).items()}
    text = json.dumps(numbers)
    metadata = {"format": FORMAT, "signature": signature, "progress": text, "sha256": _digest(tensors, signature, text)}
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(save(tensors, metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_progress(path: Path, signature: str) -> Progress:
    """Return the progress stored at `path`, which must be undamaged and of the problem that `signature` describes."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a checkpoint of a training: {error}.", **_ADVICE) from error
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a checkpoint of a training: it has another format.", **_ADVICE)
    stored, text = metadata.get("signature", ""), metadata.get("progress", "")
    if _digest(tensors, stored, text) != metadata.get("sha256"):
        raise InputError(f"The checkpoint {path} is damaged: its checksum does not match.", **_ADVICE)
    if stored != signature:
        reason = _describe_difference(stored, signature)
        raise InputError(f"The checkpoint {path} belongs to another training: {reason}.", **_ADVICE)
    states = {kind: _unprefixed(tensors, f"{kind}/") for kind in STATES}
    return Progress(**json.loads(text), **states)


_ADVICE = {
    "advice": "Pass another path, or delete the file to train from scratch.",
    "cli_advice": "Remove --resume to train from scratch.",
}


def _unprefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    digest = hashlib.sha256("\0".join(texts).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(np.ascontiguousarray(value.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def _describe_difference(stored: str, expected: str) -> str:
    try:
        old, new = (json.loads(text)["parameters"] for text in (stored, expected))
    except (ValueError, KeyError, TypeError):
        return f"it was made for {stored!r}"
    if old == new:
        return "its data differ"
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return f"its parameters differ ({', '.join(changed)})"
