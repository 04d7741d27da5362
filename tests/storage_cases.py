"""Comparison of saved and loaded models."""

import numpy as np


def assert_close(found, expected, name=""):
    """Check equality to 1e-12 of the largest number; a loaded posterior is computed again."""
    assert np.shape(found) == np.shape(expected), name
    scale = np.abs(np.nan_to_num(expected)).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * scale, err_msg=name)
