"""Rows for your own handlers, at least once. Declared in the driver, delivered in tasks."""
