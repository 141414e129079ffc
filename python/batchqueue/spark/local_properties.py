"""What Spark tells the threads and tasks of a streaming query: names of local properties, the same since Spark 3."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
