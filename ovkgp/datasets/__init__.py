"""Generators of data with known ground truth, from the papers' experiments, and streams of tables larger than memory.

Each name is loaded at its first use, so that streaming a table does not import torch.

Examples
--------
>>> from ovkgp import datasets
>>> datasets.stream.__name__
'stream'
"""

from ovkgp.lazy import lazy_names

_NAMES = {  # public names and the modules that define them
    "BadRow": "columns",
    "DataWarning": "columns",
    "Sample": "samples",
    "StreamReport": "columns",
    "TableStream": "streams",
    "angular_tasks": "landmarks",
    "emotion_tasks": "landmarks",
    "joint_rows": "landmarks",
    "make_circles_and_moons": "semi_supervised",
    "make_curl_free_field": "fields",
    "make_drifters": "drifters",
    "make_exponential_quantiles": "quantiles",
    "make_gaussian_field": "fields",
    "make_landmarks": "landmarks",
    "make_low_rank_outputs": "multitask",
    "make_quadratic_tasks": "multitask",
    "make_sine_quantiles": "quantiles",
    "make_two_moons": "semi_supervised",
    "radial_tasks": "landmarks",
    "single_rows": "landmarks",
    "stream": "streams",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
