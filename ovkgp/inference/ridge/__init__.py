"""Ridge."""
