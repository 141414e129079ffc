"""Pipelines on Spark: the same graph as Structured Streaming queries.

```text
 DRIVER    compile      each sink of the graph becomes a query: stages, then what the sink is there
             stages     map and filter in mapInArrow, repartition, aggregate, transformWithState
             sinks      exactly-once sink, file writer of Spark, or functions in the tasks
             source     a DataFrame as a source, and any other source as Spark carries it
           pipeline     SparkPipeline: explain, start, pause, run_batch; SparkRun: its queries
   │
   │  control           files: pauses, and how long epochs were busy
   ▼
 READER    reader       a process per query: any Source as a data source of Spark
             epochs     where epochs begin and end, pauses
             epoch_size how many rows: the law
   ▼
 TASKS     reader.TaskReader, stages, sinks
```
"""

from batchqueue.pipeline.spark.pipeline import SparkPipeline, SparkRun
from batchqueue.pipeline.spark.source import SparkSource

__all__ = ["SparkPipeline", "SparkRun", "SparkSource"]
