"""The demo of pipelines: `command.run` is its entry point."""
