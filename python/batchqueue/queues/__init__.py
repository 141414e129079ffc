"""The queue: its settings, handlers, statistics, and the manager of several queues."""
