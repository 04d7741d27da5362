"""Detectors of outliers, with scikit-learn's interface."""
