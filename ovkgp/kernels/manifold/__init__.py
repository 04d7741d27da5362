"""Kernels of semi-supervised learning: a penalty of functions that vary between neighboring rows, as part of the prior."""
