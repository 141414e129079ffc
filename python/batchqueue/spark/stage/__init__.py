"""One queue, opened, fed, closed, and answered for. Runs in tasks and in the commit."""
