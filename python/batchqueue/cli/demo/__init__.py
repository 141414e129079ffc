"""The main job, shown on a year of flights; `command.run` is where it starts."""
