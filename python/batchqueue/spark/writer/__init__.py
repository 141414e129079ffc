"""`MetricsWriter`: the sink for `foreachBatch`, L1 in Spark SQL, shards. Runs in the driver."""
