"""A training on disk: one safetensors file, replaced as a whole, from which a killed training goes on.

The tensors are raw parameters (`start/…`, `current/…`, `best/…`); counters, finished restarts and the seed are JSON in the
metadata, with a signature of the problem and a SHA-256 of the rest. Reading executes nothing.
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
    """What must be known to go on with a training.

    Args:
        seed: of the perturbed starts; with the index of a restart it gives that restart's numbers.
        start, current, best: raw parameters by name: where restarts are perturbed from, the best of the restart under
            way, the best of all.
        best_value: the objective at `best`; None before the first evaluation.
        current_iterations: those of the restart under way.
        finished: a dictionary for each finished restart (objective, iterations, converged, message, gradient_norm).
        evaluations, failures, seconds, history: as in `FitReport`.
        done: whether the training has ended by itself.
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
    """Names and shapes of the parameters, and the caller's fingerprint of the data, as one line of JSON.

    Example:
        >>> import torch
        >>> from ovkgp.inference.training.checkpoints import problem_signature
        >>> problem_signature({"raw_lengthscale": torch.zeros(1, 2)}, "rows=10")
        '{"data": "rows=10", "parameters": {"raw_lengthscale": [1, 2]}}'
    """
    shapes = {name: list(value.shape) for name, value in state.items()}
    return json.dumps({"data": data, "parameters": shapes}, sort_keys=True)


def check_writable(path: str | os.PathLike) -> Path:
    """Raise unless a file can be written at `path`; nothing stays behind."""
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise InputError(
            f"nothing can be written to {path}: {error}. Give a file in a folder that exists and is writable."
        ) from error


def write_progress(path: Path, progress: Progress, signature: str) -> None:
    """Replace the file at `path` by `progress`, whole or not at all.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from ovkgp.inference.training.checkpoints import Progress, read_progress, write_progress
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "training.safetensors"
        ...     write_progress(path, Progress(seed=3, best={"a": torch.ones(2)}), "toy")
        ...     read_progress(path, "toy").best["a"].tolist()
        [1.0, 1.0]
    """
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
    """The progress at `path`, which must be whole and of the problem that `signature` describes."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a checkpoint of a training: {error}. {_ADVICE}") from error
    if metadata.get("format") != FORMAT:
        raise InputError(f"{path} is not a checkpoint of a training: it holds something else. {_ADVICE}")
    stored, text = metadata.get("signature", ""), metadata.get("progress", "")
    if _digest(tensors, stored, text) != metadata.get("sha256"):
        raise InputError(f"the checkpoint {path} is damaged: its checksum does not fit. {_ADVICE}")
    if stored != signature:
        raise InputError(
            f"the checkpoint {path} belongs to another training: {_difference(stored, signature)}. {_ADVICE}"
        )
    states = {kind: _unprefixed(tensors, f"{kind}/") for kind in STATES}
    return Progress(**json.loads(text), **states)


_ADVICE = "Give another path, or delete the file to begin anew."


def _unprefixed(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _digest(tensors: Mapping[str, Tensor], *texts: str) -> str:
    digest = hashlib.sha256("\0".join(texts).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"\0{name} {value.dtype} {tuple(value.shape)}\0".encode())
        digest.update(np.ascontiguousarray(value.reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def _difference(stored: str, expected: str) -> str:
    try:
        old, new = (json.loads(text)["parameters"] for text in (stored, expected))
    except (ValueError, KeyError, TypeError):
        return f"it was made for {stored!r}"
    if old == new:
        return "its data are not these"
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return f"its parameters are not these (see {', '.join(changed)})"
