"""Selection."""
