"""Adapters of forecasters to other packages, each in the module with the name of the package, which must be installed."""
