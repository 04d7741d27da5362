"""Selection of kernels and options by evidence, leave-one-out and cross-validation."""
