"""What do the data say? Evidence and posteriors of Gaussian processes with operator-valued kernels."""
