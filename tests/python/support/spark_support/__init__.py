"""Helpers of the tests in `spark`. Tests and their drivers import them; tasks get them by value or as a zip."""
