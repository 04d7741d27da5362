"""Forecasters of several series at once."""
