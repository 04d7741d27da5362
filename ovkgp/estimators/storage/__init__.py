"""Saving and loading of fitted estimators."""
