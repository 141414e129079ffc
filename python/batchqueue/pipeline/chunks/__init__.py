"""Chunks: how they are cut, measured and traced back to where they came from."""
