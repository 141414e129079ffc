"""One attempt of one task: its rows become partials, on a queue that lives as long."""

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa

from batchqueue.spark.job.aggregation_job import AggregationJob
from batchqueue.spark.job.options import SinkOptions
from batchqueue.spark.stage.process import CpuMeter, infrequent_gc
from batchqueue.spark.stage.stage import Stage
from batchqueue.spark.task.contents import Contents, are_of_groups, contents_of_rows, total
from batchqueue.spark.task.context import EpochId
from batchqueue.spark.task.l1 import L1, L1Partials
from batchqueue.spark.task.message import AttemptMessage, AttemptSummary, check_size, encode_message


@infrequent_gc()
def aggregate(
    job: AggregationJob, batches: Iterable[pa.RecordBatch], sink_id: str
) -> tuple[L1Partials, AttemptSummary]:
    """Turn the rows of one task into partials, on a queue that lives as long as the attempt.

    Args:
        job: What to do with the rows.
        batches: The rows.
        sink_id: The sink that the partials are for, or one of its shards.

    Raises:
        SinkError: An item was lost.
    """
    meter = CpuMeter()
    rows = 0
    contents: list[Contents] = []
    of_groups = are_of_groups(job)

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            rows += batch.num_rows
            if not of_groups and batch.num_rows:
                contents.append(contents_of_rows(batch, job.columns))
            yield batch

    l1 = L1(job, sink_id)
    # Neither the task's id nor the attempt's number is unique: a task may run twice concurrently.
    with Stage(f"{job.name}-l1-{uuid.uuid4()}", job.l1, l1.handlers) as stage:
        for batch in counted() if job.prepare is None else job.prepare(counted()):
            l1.produce(batch, stage)
            if stage.has_failed:
                break  # Spark will retry the whole task
    partials = l1.partials()
    return partials, AttemptSummary(
        rows,
        stage.summary,
        stage.thread_items,
        meter.read(stage.drain_cpu_s),
        l1.skipped,
        l1.rows.bad_rows,
        l1.rows.first_error,
        l1.newest,
        l1.contents if of_groups else total(contents),
    )


def run_attempt(
    job: AggregationJob,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    epoch: EpochId | None = None,
) -> AttemptMessage:
    """Aggregate the rows of one task, and encode the result for the commit.

    Args:
        job: What to do with the rows.
        options: With `sink_id` and `max_commit_bytes`.
        batches: The rows.
        epoch: The micro-batch that the rows belong to; None in a batch write.

    Raises:
        SinkError: An item was lost, a partial cannot be encoded, or the partials are too large.
    """
    partials, summary = aggregate(job, batches, options.sink_id)
    message = encode_message(partials.objects, job, summary, epoch, partials.groups)
    check_size(message.size, options)
    return message
