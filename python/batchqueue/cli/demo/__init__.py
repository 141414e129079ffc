"""The main job on a year of flights; `command.run` is its entry point."""
