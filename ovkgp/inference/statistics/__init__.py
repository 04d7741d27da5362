"""Sufficient statistics of data for a feature map, and the posterior of the weights that follows from them."""
