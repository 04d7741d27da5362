"""Posteriors given data, and the predictions, samples and derived fields that follow from them."""
