"""Correct and mistaken uses of the interface: `make lint` fails if a type checker finds another mistake, or misses one of those marked."""

from __future__ import annotations

from typing import assert_type

import numpy as np

import ovkgp
from ovkgp import FunctionGPRegressor, GPRegressor, OVKRidge
from ovkgp.criticism import criticize
from ovkgp.kernels import DecomposableKernel


def use_interface() -> None:
    """Use the interface; this function is read by the type checker and never called."""
    X, Y = np.zeros((3, 2)), np.zeros((3, 2))

    model = GPRegressor(kernel="auto", random_state=0)
    assert_type(model.fit(X, Y), GPRegressor)
    assert_type(model.predict(X), np.ndarray)
    assert_type(model.predict(X, return_std=True), tuple[np.ndarray, np.ndarray])
    assert_type(model.predict(X, return_cov="full"), tuple[np.ndarray, np.ndarray])
    assert_type(ovkgp.OVKRidge(lam=0.1).fit(X, Y), OVKRidge)
    _, std = FunctionGPRegressor(random_state=0).fit(X, Y).predict(X, return_std=True)
    std.sum()

    GPRegressor(kernl=3)  # pyright: ignore[reportCallIssue]
    ovkgp.InfiniteQuantileRegressor(kernl="rbf")  # pyright: ignore[reportCallIssue]
    FunctionGPRegressor(grid=X)  # pyright: ignore[reportCallIssue]
    model.predikt(X)  # pyright: ignore[reportAttributeAccessIssue]
    model.predict(X, return_std=True).mean()  # pyright: ignore[reportAttributeAccessIssue]
    model.sample_y(X, samples=3)  # pyright: ignore[reportCallIssue]
    ovkgp.load("model.ovkgp", kernle=None)  # pyright: ignore[reportCallIssue]
    ovkgp.GPRegresor()  # pyright: ignore[reportAttributeAccessIssue]
    criticize(model, X, Y, group=None)  # pyright: ignore[reportCallIssue]
    DecomposableKernel(num_output=2)  # pyright: ignore[reportCallIssue]
