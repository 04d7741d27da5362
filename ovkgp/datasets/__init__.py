"""Generators of data with known ground truth, from the papers' experiments, and streams of tables larger than memory.

Each name is loaded at its first use, so that streaming a table does not import torch.

Examples
--------
>>> from ovkgp import datasets
>>> datasets.stream.__name__
'stream'
"""

from ovkgp.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
