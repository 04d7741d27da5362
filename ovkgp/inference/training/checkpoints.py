"""Checkpoints: the progress of a training in one safetensors file, which is replaced atomically.

The tensors are raw parameters (`start/…`, `current/…`, `best/…`); counters, finished restarts and the seed are JSON in
the metadata, with a signature of the problem and a SHA-256 of the rest. Reading executes no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from operator import methodcaller
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.files import digest, replace_file
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.training.initialization import Initialization

FORMAT = "ovkgp-training-2"
STATES = ("start", "current", "best")


@dataclass
class Progress:
    """Everything needed to resume a training.

    `start`, `current` and `best` are raw parameters by name: the initial state of the first restart, the best of the current
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


def fingerprint_problem(density, data: Observations, initialization: Initialization) -> str:
    """Return a hash of the data and the objective at the initial values, to recognize the problem of a checkpoint."""
    parts = {"X": data.X, "Y": data.Y} | ({} if data.noise is None else {"noise": data.noise})
    current, vector = density.vector.state(), density.vector
    vector.load(initialization.values[0])
    value = density(vector.get())[0]
    vector.load(current)
    return f"{digest(parts)[:16]} {value:.8g}"


def problem_signature(state: Mapping[str, Tensor], data: str = "") -> str:
    """Return names and shapes of the parameters and a fingerprint of the data as one line of JSON."""
    shapes = {name: list(value.shape) for name, value in state.items()}
    return json.dumps({"data": data, "parameters": shapes}, sort_keys=True)


def write_progress(path: Path, progress: Progress, signature: str) -> None:
    """Replace the file at `path` by `progress`, completely or not at all."""
    numbers = asdict(progress)
    tensors = {f"{kind}/{name}": value.contiguous() for kind in STATES for name, value in numbers.pop(kind).items()}
    text = json.dumps(numbers)
    metadata = {"format": FORMAT, "signature": signature, "progress": text, "sha256": digest(tensors, signature, text)}
    replace_file(path, methodcaller("write", save(tensors, metadata)))


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
    if digest(tensors, stored, text) != metadata.get("sha256"):
        raise InputError(f"The checkpoint {path} is damaged: its checksum does not match.", **_ADVICE)
    if stored != signature:
        reason = _describe_difference(stored, signature)
        raise InputError(f"The checkpoint {path} belongs to another training: {reason}.", **_ADVICE)
    states = {kind: {} for kind in STATES}
    for full_name, value in tensors.items():
        kind, _, name = full_name.partition("/")
        states[kind][name] = value
    return Progress(**json.loads(text), **states)


_ADVICE = {
    "advice": "Pass another path, or delete the file to train from scratch.",
    "cli_advice": "Remove --resume to train from scratch.",
}


def _describe_difference(stored: str, expected: str) -> str:
    try:
        old, new = (json.loads(text)["parameters"] for text in (stored, expected))
    except (ValueError, KeyError, TypeError):
        return f"it was made for {stored!r}"
    if old == new:
        return "its data differ"
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return f"its parameters differ ({', '.join(changed)})"
