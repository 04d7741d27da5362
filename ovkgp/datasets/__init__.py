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
    "CurveSample": "curves",
    "DataWarning": "columns",
    "Sample": "samples",
    "StreamReport": "columns",
    "TableStream": "streams",
    "add_outlying_curves": "corruptions",
    "angular_tasks": "landmarks",
    "corrupt_points": "corruptions",
    "drop_points": "corruptions",
    "emotion_tasks": "landmarks",
    "joint_rows": "landmarks",
    "make_circles_and_moons": "planar_shapes",
    "make_curl_free_field": "fields",
    "make_drifters": "drifters",
    "make_exponential_quantiles": "quantiles",
    "make_gaussian_field": "fields",
    "make_landmarks": "landmarks",
    "make_lip_curves": "curves",
    "make_low_rank_outputs": "multitask",
    "make_mixture_curves": "curves",
    "make_quadratic_tasks": "multitask",
    "make_sine_quantiles": "quantiles",
    "make_spiral": "planar_shapes",
    "make_spline_curves": "curves",
    "make_two_moons": "planar_shapes",
    "negate_curves": "corruptions",
    "permute_curves": "corruptions",
    "radial_tasks": "landmarks",
    "single_rows": "landmarks",
    "stream": "streams",
}

__all__ = [*_NAMES]
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
