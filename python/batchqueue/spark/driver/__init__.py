"""What runs in Spark's driver: formats, `MetricsWriter`, handlers, progress."""
