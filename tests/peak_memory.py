"""The largest total of live tensors, for tests of bounded memory."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class PeakMemory(TorchDispatchMode):
    """The largest total of live tensor storages made inside, in bytes."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(tensor):
                storage = tensor.untyped_storage()
                reference = torch.multiprocessing.reductions.StorageWeakRef(storage)
                self.live[storage.data_ptr()] = storage.nbytes(), reference
        self.live = {key: pair for key, pair in self.live.items() if not pair[1].expired()}
        self.peak = max(self.peak, sum(size for size, _ in self.live.values()))
        return result
