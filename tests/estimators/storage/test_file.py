"""Tests of model files: exact round trips, atomic writes, and rejection of invalid files."""

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch

from ovkgp.estimators.storage.file import FORMAT, FORMAT_VERSION, read_model, write_model
from ovkgp.exceptions import InputError, ModelFileError
from ovkgp.files import digest

HEADER = {"estimator": "GPRegressor", "params": {"noise": 0.1, "rank": None, "names": ["Größe", "b"]}, "n": 3}
TENSORS = {
    "double": torch.tensor([[1.5, float("nan")], [float("-inf"), -0.0]], dtype=torch.float64),
    "float": torch.randn(3, 2, generator=torch.Generator().manual_seed(0)),
    "half": torch.tensor([1.0, 2.0], dtype=torch.float16),
    "long": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False, True]),
    "byte": torch.arange(256, dtype=torch.uint8),
    "number": torch.tensor(3.25, dtype=torch.float64),
    "nothing": torch.zeros(0, 3),
    "rotated": torch.arange(6.0).reshape(2, 3).mT,
    "stepped": torch.arange(10.0)[::3],
    "expanded": torch.ones(1).expand(4),
    "trained": torch.nn.Parameter(torch.ones(2)),
}


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(read, written):
    assert sorted(read) == sorted(written)
    for name, tensor in written.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape), name
        assert bits(read[name]) == bits(tensor), name


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.ovkgp"


@pytest.fixture
def written(path):
    write_model(path, TENSORS, HEADER)
    return path


def test_model_file_round_trip_is_exact(written):
    tensors, header = read_model(written)
    assert_same(tensors, TENSORS)
    assert header == HEADER


def test_model_file_accepts_path_types(path):
    class CustomPath(os.PathLike):
        def __fspath__(self):
            return str(path)

    for target in (str(path), CustomPath(), os.fsencode(path)):
        write_model(target, {}, {"type": type(target).__name__})
        assert read_model(target) == ({}, {"type": type(target).__name__})


def test_read_tensors_own_their_memory(written):
    tensors, _ = read_model(written)
    written.write_bytes(b"")
    tensors["double"].add_(1)
    assert tensors["double"][0, 0] == 2.5


def test_write_model_copies_tensors_with_shared_memory(path):
    whole = torch.arange(6.0)
    write_model(path, {"whole": whole, "again": whole, "part": whole[2:4]}, {})
    assert_same(read_model(path)[0], {"whole": whole, "again": whole, "part": whole[2:4]})


def test_write_model_metadata_does_not_depend_on_order(tmp_path):
    write_model(tmp_path / "a", TENSORS, HEADER)
    write_model(tmp_path / "b", dict(reversed(TENSORS.items())), dict(reversed(HEADER.items())))
    assert json_of(tmp_path / "a")["__metadata__"] == json_of(tmp_path / "b")["__metadata__"]


def test_model_file_is_readable_by_safetensors(written):
    tensors = safetensors.torch.load_file(written)
    assert_same(tensors, TENSORS)


# --- invalid files --------------------------------------------------------------------------------------------------


def json_of(path):
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def rewrite_metadata(path, **changes):
    """Write the same tensors with other metadata."""
    metadata = {**json_of(path)["__metadata__"], **changes}
    path.write_bytes(safetensors.torch.save(safetensors.torch.load_file(path), metadata))


def test_read_model_rejects_missing_file(path):
    with pytest.raises(FileNotFoundError, match=r"no model file .*model\.ovkgp"):
        read_model(path)


def test_model_file_rejects_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match="folder"):
        read_model(tmp_path)
    with pytest.raises(IsADirectoryError, match="folder"):
        write_model(tmp_path, {}, {})


def test_read_model_rejects_empty_file(path):
    path.touch()
    with pytest.raises(ModelFileError, match="empty"):
        read_model(path)


def test_read_model_rejects_truncated_file(written):
    data = written.read_bytes()
    for length in [1, 7, 8, 9, 100, *range(len(data) - 9, len(data))]:
        written.write_bytes(data[:length])
        with pytest.raises(ModelFileError, match="truncated"):
            read_model(written)


def test_read_model_rejects_trailing_bytes(written):
    written.write_bytes(written.read_bytes() + b"\0")
    with pytest.raises(ModelFileError, match="not a model file"):
        read_model(written)


def test_read_model_rejects_changed_numbers(written):
    data = bytearray(written.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    flags = start + next(v["data_offsets"][0] for k, v in json_of(written).items() if k == "bool")
    for index in [start, flags, len(data) - 1, *np.random.default_rng(0).integers(start, len(data), 20)]:
        changed = data.copy()
        changed[index] ^= 1
        written.write_bytes(changed)
        with pytest.raises(ModelFileError, match="modified"):
            read_model(written)


@pytest.mark.parametrize(("old", "new"), [(b"GPRegressor", b"GPRegressoR"), (b"half", b"harf"), (b"F32", b"I32")])
def test_read_model_rejects_changed_names_and_types(written, old, new):
    data = written.read_bytes()
    assert old in data
    written.write_bytes(data.replace(old, new))
    with pytest.raises(ModelFileError, match="modified"):
        read_model(written)


def test_read_model_rejects_changed_shape(written):
    data = written.read_bytes()
    assert b'"shape":[3,2]' in data
    written.write_bytes(data.replace(b'"shape":[3,2]', b'"shape":[2,3]', 1))
    with pytest.raises(ModelFileError, match="modified"):
        read_model(written)


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"header": "{}"}, {"header": "not json"}])
def test_read_model_rejects_changed_metadata(written, changes):
    rewrite_metadata(written, **changes)
    with pytest.raises(ModelFileError, match="modified"):
        read_model(written)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_read_model_rejects_other_safetensors(path, metadata):
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, metadata))
    with pytest.raises(ModelFileError, match="not a model"):
        read_model(path)


@pytest.mark.parametrize("version, key", [(FORMAT_VERSION + 1, "newer"), (FORMAT_VERSION - 1, "format version")])
def test_read_model_rejects_other_format_versions(written, version, key):
    rewrite_metadata(written, format_version=str(version))
    with pytest.raises(ModelFileError, match=key):
        read_model(written)


@pytest.mark.parametrize("version", ["", "one", "-1", "²"])
def test_read_model_rejects_invalid_format_version(written, version):
    rewrite_metadata(written, format_version=version)
    with pytest.raises(ModelFileError, match="format version"):
        read_model(written)


class Trap:
    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_read_model_rejects_pickle_without_running_it(path, tmp_path):
    trap = Trap()
    trap.folder = str(tmp_path / "sprung")
    for data in (pickle.dumps(trap), b"PK\x03\x04" + bytes(100), b"\xff" * 64, b"{}", b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="not a model file"):
            read_model(path)
    torch.save({"trap": trap}, path)
    with pytest.raises(ModelFileError, match="not a model file"):
        read_model(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("tensors", "header", "key"),
    [
        ({"a": [1.0]}, {}, "list for 'a'"),
        ({1: torch.ones(1)}, {}, "Tensor for 1"),
        ({"a": torch.ones(1, dtype=torch.complex128)}, {}, "complex128.*'a'"),
        ({"a": torch.eye(2).to_sparse()}, {}, "dense"),
        ({}, {"a": torch.ones(1)}, "JSON"),
        ({}, {"a": {1, 2}}, "JSON"),
    ],
)
def test_write_model_rejects_unsupported_values(path, tensors, header, key):
    with pytest.raises(InputError, match=key):
        write_model(path, tensors, header)
    assert not path.exists()


# --- atomic writes --------------------------------------------------------------------------------------------------


def list_names(folder):
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError("no space left on device"), KeyboardInterrupt()])
def test_failed_write_keeps_old_file(written, monkeypatch, step, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(failure)):
        write_model(written, {"new": torch.ones(1000)}, {})
    assert list_names(written.parent) == ["model.ovkgp"]
    assert_same(read_model(written)[0], TENSORS)


def test_write_model_rejects_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing.*model\.ovkgp"):
        write_model(tmp_path / "missing" / "model.ovkgp", {}, {})


def test_write_model_follows_links(tmp_path, written):
    link = tmp_path / "latest"
    link.symlink_to(written)
    write_model(link, {}, {"by": "link"})
    assert link.is_symlink() and read_model(written)[1] == {"by": "link"}


def test_write_model_keeps_permissions(written):
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(written.stat().st_mode) == 0o666 & ~mask
    written.chmod(0o600)
    write_model(written, {}, {})
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


KILLED = """
import sys, torch
from ovkgp.estimators.storage.file import write_model
n = 0
while True:
    n += 1
    write_model(sys.argv[1], {"a": torch.full((50_000,), float(n))}, {"n": n})
    print(n, flush=True)
"""


@pytest.mark.slow
def test_killed_process_leaves_complete_file(path):
    """A process that rewrites the model in a loop is killed three times."""
    for wait in (0.01, 0.013, 0.02):
        writer = subprocess.Popen([sys.executable, "-c", KILLED, path], stdout=subprocess.PIPE, text=True)
        writer.stdout.readline()
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        tensors, header = read_model(path)
        assert torch.equal(tensors["a"], torch.full((50_000,), float(header["n"])))


@pytest.mark.parametrize("header", [None, "[" * 100_000, "[]", "not json", '{"a": ' * 100_000])
def test_read_model_rejects_invalid_headers_with_a_right_checksum(path, header):
    stored = {"x": torch.zeros(2)}
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION)} | (
        {} if header is None else {"header": header}
    )
    metadata["sha256"] = digest(stored, FORMAT, FORMAT_VERSION, header or "")
    path.write_bytes(safetensors.torch.save(stored, metadata))
    with pytest.raises(ModelFileError, match="does not describe a fitted model"):
        read_model(path)
