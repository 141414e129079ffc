"""Cuts: what is kept of them, and which one a run continues from."""
