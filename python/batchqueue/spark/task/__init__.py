"""One attempt of one Spark task: rows become partials. Runs in the Python worker of the task."""
