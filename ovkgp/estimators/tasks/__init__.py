"""Estimators for a continuum of tasks: costs, levels and vector-valued tasks."""
