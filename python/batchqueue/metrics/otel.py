"""The queues of a process as OpenTelemetry instruments."""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from batchqueue._core import __version__
from batchqueue.base.checks import require
from batchqueue.exceptions import ConfigError
from batchqueue.metrics.names import QueueMetric
from batchqueue.metrics.reading import Buckets, Reading, read_queues

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider, Observation

Samples = Iterator[tuple[float, dict[str, str]]]
Source = Callable[[Reading], Samples]

_READING_LASTS_S = 1.0

_instrumented: "weakref.WeakSet[MeterProvider]" = weakref.WeakSet()


class _Readings:
    """The reading that the instruments of one collection share: each of them asks once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reading = Reading()
        self._read_at = float("-inf")
        self._asked: set[str] = set()

    def for_instrument(self, name: str) -> Reading:
        with self._lock:
            is_old = time.monotonic() - self._read_at > _READING_LASTS_S
            if is_old or name in self._asked:
                self._reading = read_queues()
                self._read_at = time.monotonic()
                self._asked.clear()
            self._asked.add(name)
            return self._reading


def instrument(meter_provider: "MeterProvider | None" = None) -> None:
    """Offer the metrics of every queue of this process to OpenTelemetry.

    Queues made later are included, and queues that are shut down as long as they exist. The names
    are those of `QueueMetric` without `_total`; the queue is the attribute `queue`. OpenTelemetry
    has no asynchronous histogram, so each histogram is three counters, as Prometheus shows it:
    `_bucket`, with the upper limit of each bucket in the attribute `le`, `_sum` and `_count`.

    Args:
        meter_provider: The provider of the instruments. A second call for the same one does
            nothing. Default: the global provider.

    Raises:
        ConfigError: `meter_provider` is not a MeterProvider.
        MissingPackageError: OpenTelemetry is not installed: the extra `otel`.
    """
    require("opentelemetry.metrics", "metrics.instrument", "otel")
    from opentelemetry import metrics

    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    if not isinstance(provider, metrics.MeterProvider):
        raise ConfigError(
            f"instrument needs a MeterProvider, not {provider!r}; give that of your OpenTelemetry "
            "SDK, or none for the global one"
        )
    if provider in _instrumented:
        return
    _instrumented.add(provider)
    meter, readings = provider.get_meter("batchqueue", __version__), _Readings()
    for metric in QueueMetric:
        spec = metric.value
        if spec.kind != "histogram":
            name = spec.name.removesuffix("_total")
            source = _values(metric)
            _observe(meter, readings, name, source, kind=spec.kind, unit=spec.unit, what=spec.what)
            continue
        for part, unit, source in (
            ("bucket", "calls", _of_buckets(metric)),
            ("sum", spec.unit, _of_histogram(metric, lambda buckets: buckets.sum)),
            ("count", "calls", _of_histogram(metric, lambda buckets: buckets.count)),
        ):
            name, what = f"{spec.name}_{part}", f"{spec.what} ({part})"
            _observe(meter, readings, name, source, kind="counter", unit=unit, what=what)


def _observe(
    meter: "Meter",
    readings: _Readings,
    name: str,
    source: Source,
    *,
    kind: str,
    unit: str,
    what: str,
) -> None:
    from opentelemetry.metrics import Observation

    def observe(_: Any) -> "Iterable[Observation]":
        reading = readings.for_instrument(name)
        return [Observation(value, attributes) for value, attributes in source(reading)]

    ucum = "s" if unit == "seconds" else f"{{{unit}}}"
    make: Any = (
        meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
    )
    make(name, [observe], ucum, what)


def _values(metric: QueueMetric) -> Source:
    def samples(reading: Reading) -> Samples:
        for (found, queue), value in reading.values.items():
            if found is metric:
                yield value, {"queue": queue}

    return samples


def _of_histogram(metric: QueueMetric, figure: Callable[[Buckets], float]) -> Source:
    def samples(reading: Reading) -> Samples:
        for (found, queue, kind), buckets in reading.histograms.items():
            if found is metric:
                yield figure(buckets), {"queue": queue, "type": kind}

    return samples


def _of_buckets(metric: QueueMetric) -> Source:
    def samples(reading: Reading) -> Samples:
        for (found, queue, kind), buckets in reading.histograms.items():
            if found is metric:
                for le, at_most in buckets.by_label():
                    yield at_most, {"queue": queue, "type": kind, "le": le}

    return samples
