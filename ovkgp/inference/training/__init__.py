"""Initial values, priors and training of hyperparameters."""
