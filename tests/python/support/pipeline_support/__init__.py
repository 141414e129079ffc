"""Sources, sinks and oracles of the tests of pipelines."""
