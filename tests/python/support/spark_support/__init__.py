"""Helpers of the tests in `spark`, and of their drivers; tasks get them by value or as a zip."""
