"""Parts of a model (mean, noise, hyperparameters) and its data."""
