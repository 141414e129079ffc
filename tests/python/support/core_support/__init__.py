"""Helpers of the tests in `core`."""
