"""Inference strategies: the linear algebra that the structure of kernel and data allows."""
