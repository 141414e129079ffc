"""Spark on this machine: a session, its Java, and a dry run without either."""
