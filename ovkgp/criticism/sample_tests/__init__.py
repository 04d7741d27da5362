"""Tests and estimates from samples and Gram matrices: Gaussianity, rank of a covariance, two samples, independence."""
