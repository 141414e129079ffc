"""The job as a data source for reads, writes and streams. Planned in the driver."""
