"""Helpers of the tests in `outputs`, and of others that need a store."""
