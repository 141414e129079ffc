"""Flights as records of a topic, what each adds to the metrics, and what a store has of them."""

from batchqueue.aggregation import (
    Aggregation,
    Count,
    CountMetrics,
    Max,
    MaxMetrics,
    MeanMetrics,
    Ranking,
    Sum,
    SumMetrics,
    TopN,
    metric_type,
)
from batchqueue.groups import MetricsSink

FLIGHTS = metric_type("flights", CountMetrics)
MILES = metric_type("miles", SumMetrics, columns={"total": int})
MEAN_DELAY = metric_type("delay.mean", MeanMetrics, columns={"total": int})
MAX_DELAY = metric_type("delay.max", MaxMetrics, columns={"value": int})
WORST = metric_type("delay.worst", Ranking, columns={"score": int}, limit=3)

BY_DESTINATION = Aggregation(
    keys=["dest", "day"],
    measures={
        "flights": Count(),
        "miles": Sum("distance"),
        "delay": Sum("dep_delay"),
        "delays": Count("dep_delay"),
        "longest": Max("dep_delay"),
        "worst": TopN("dep_delay", WORST.limit, "flight_id"),
    },
)

SQL = """
SELECT dest, day, count(*) flights, sum(distance) miles, avg(dep_delay) mean, max(dep_delay) longest
FROM flights GROUP BY dest, day
"""
WORST_SQL = f"""
SELECT * FROM (SELECT dest, day, dep_delay, flight_id, row_number() OVER (
    PARTITION BY dest, day ORDER BY dep_delay DESC, flight_id) rank
FROM flights WHERE dep_delay IS NOT NULL) WHERE rank <= {WORST.limit} ORDER BY rank
"""


def sink_of(store, worker):
    """Returns the sink for the codec of a worker: of values, or of Arrow batches."""
    if worker["codec"] == "arrow":
        return MetricsSink.arrow(store, BY_DESTINATION, metrics_of_groups)
    return MetricsSink(store, metrics_of_flight)


def metrics_of_flight(flight):
    dest, day, delay = flight["dest"], flight["day"], flight["dep_delay"]
    yield FLIGHTS(dest, day)
    yield MILES(dest, day, flight["distance"])
    yield MEAN_DELAY(dest, day, delay)
    yield MAX_DELAY(dest, day, delay)
    if delay is not None:
        yield WORST(dest, day, delay, flight["flight_id"])


def metrics_of_groups(groups):
    for group in groups.to_pylist():
        dest, day = group["dest"], group["day"]
        yield FLIGHTS(dest, day, group["flights"])
        yield MILES(dest, day, group["miles"])
        yield MEAN_DELAY(dest, day, group["delay"], group["delays"])
        yield MAX_DELAY(dest, day, group["longest"])
        if group["worst"]:
            worst = [(entry["value"], entry["label"], "") for entry in group["worst"]]
            yield WORST.from_rows(dest, day, worst)


def counted(store):
    """Returns how many flights a store has."""
    return sum(each.count for each in store.read(FLIGHTS))


def stored(store):
    """Returns what a store has, as `by_spark` does."""
    return {
        "flights": {each.key: each.count for each in store.read(FLIGHTS)},
        "miles": {each.key: each.total for each in store.read(MILES)},
        "mean": {each.key: each.value for each in store.read(MEAN_DELAY)},
        "longest": {each.key: each.value for each in store.read(MAX_DELAY)},
        "worst": {
            each.key: [(entry.score, entry.id) for entry in each.entries]
            for each in store.read(WORST)
        },
    }


def by_spark(spark, path):
    """Returns the same of the flights in a Parquet file, by Spark SQL."""
    spark.read.parquet(str(path)).createOrReplaceTempView("flights")
    rows = spark.sql(SQL).collect()
    names = "flights", "miles", "mean", "longest"
    found = {name: {(row.dest, row.day): row[name] for row in rows} for name in names}
    found["worst"] = {}
    for row in spark.sql(WORST_SQL).collect():
        ranking = found["worst"].setdefault((row.dest, row.day), [])
        ranking.append((row.dep_delay, row.flight_id))
    return found
