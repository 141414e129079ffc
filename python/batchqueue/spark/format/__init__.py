"""The job as a data source for `df.write` and `writeStream`. Planned in the driver."""
