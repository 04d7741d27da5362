"""Variational Gaussian processes: the model, its bound, families of q and their optimization."""
