"""`OtlpLogs`, `OtlpMetrics` and `OtlpTraces`: items as telemetry, over gRPC, to a collector."""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import LogRecord
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from batchqueue.base.checks import ABOVE_0, check_finite, check_switch, check_whole, require
from batchqueue.base.words import a_type, counted
from batchqueue.exceptions import BatchQueueError, ConfigError
from batchqueue.exporters.contract import (
    AskedWait,
    Exporter,
    Halve,
    NotDelivered,
    Outcome,
    send_in_halves,
)
from batchqueue.logging import as_dict

if TYPE_CHECKING:
    import grpc

T = TypeVar("T")

_log = logging.getLogger("batchqueue")

_PORT = 4317

_AGAIN = frozenset(
    ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
)
"""The statuses after which the OTLP specification wants a request again."""

_TOO_LARGE = re.compile(r"larger than|too large|exceeds max", re.IGNORECASE)
"""What servers say, with one of two statuses, when a request has too many bytes for them."""

_OPTIONS = {
    "grpc.use_local_subchannel_pool": 1,  # by default a new channel may get an old connection
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.min_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 2_000,  # by default up to two minutes pass after a restart
}

_SHOWN_CHARACTERS = 500
_REPEATED_LOG_S = 60.0


class OtlpRefused(BatchQueueError):
    """A server did not take telemetry, or could not be reached.

    Attributes:
        code: The name of the gRPC status, such as "UNAVAILABLE"; "OK" if the server took the
            request and rejected some of what was in it.
        text: What the server says.
    """

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(f"OTLP status {code}: {text}" if text else f"OTLP status {code}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text)


_Scoped = tuple[Any, str]
"""A message and the name of its scope."""


class _Otlp(Exporter[T]):
    """What the three exporters share."""

    _method: str
    """The service that takes the requests, and its method."""
    _things: str
    """What the server counts when it rejects some."""

    def __init__(
        self,
        endpoint: str,
        *,
        to_record: Callable[[T], Any] | None = None,
        resource: Mapping[str, Any] | None = None,
        scope: str | None = None,
        scope_attributes: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        gzip: bool = False,
        timeout: float = 10,
        max_request_bytes: int = 4_000_000,
        max_retry_after: float = 300,
        channel: "Callable[[], grpc.Channel] | None" = None,
    ) -> None:
        """Declare an exporter without connecting: a drain thread connects at the first batch.

        Args:
            endpoint: Where the collector is: "http://host:4317", or "https://host:4317" with TLS.
            to_record: Makes what is sent from an item: a message of the package
                opentelemetry-proto. Default: the item.
            resource: Attributes of what the telemetry is about, such as `service.name`. Default:
                none.
            scope: The name of the instrumentation scope. Default: none; for a record of `logging`,
                the name of its logger.
            scope_attributes: Attributes of the scope. Default: none.
            headers: Metadata of each request; or a function that returns them, for instance with a
                token that expires. Default: none.
            gzip: Whether to compress requests. Default: False.
            timeout: Seconds for a request, including the wait for a connection. Default: 10 s.
            max_request_bytes: The most bytes of a request; a batch with more is sent in several.
                Default: 4,000,000, a little less than collectors take by default.
            max_retry_after: The most seconds that are respected if the server asks for a wait.
                Default: 300 s.
            channel: Makes the `grpc.Channel`, for instance with your own certificates. Default: one
                for `endpoint`.

        Raises:
            ConfigError: An argument is invalid.
            MissingPackageError: grpcio, opentelemetry-proto or googleapis-common-protos is not
                installed.
        """
        name = type(self).__name__
        for module in ("grpc", "opentelemetry.proto.logs.v1.logs_pb2", "google.rpc.status_pb2"):
            require(module, name, "otlp")
        self._address, self._is_secure = _address(endpoint)
        for argument, value, takes in (
            ("to_record", to_record, (type(None),)),
            ("headers", headers, (Mapping, type(None))),
            ("channel", channel, (type(None),)),
        ):
            if not isinstance(value, takes) and not callable(value):
                raise ConfigError(f"{argument} is {value!r}; it must be callable")
        if scope is not None and not isinstance(scope, str):
            raise ConfigError(f"scope is {scope!r}, {a_type(scope)}; give a name, or None")
        check_switch("gzip", gzip)
        check_finite("timeout", timeout, ABOVE_0, give="seconds above 0")
        check_whole("max_request_bytes", max_request_bytes, 1)
        check_finite("max_retry_after", max_retry_after, 0, give="seconds from 0 up")
        self._kind, self._response = self._classes()
        self._to_record = to_record
        self._resource = key_values(_attributes("resource", resource))
        self._scope = scope
        self._scope_attributes = key_values(_attributes("scope_attributes", scope_attributes))
        self._make_headers = headers if callable(headers) else None
        self._metadata = _metadata(headers) if isinstance(headers, Mapping) else ()
        self._gzip, self._timeout, self._max_bytes = gzip, timeout, max_request_bytes
        self._make_channel = channel
        self._wait = AskedWait(max_retry_after)
        self._warned_at = -_REPEATED_LOG_S
        self._channel: grpc.Channel | None = None
        self._call: Callable[..., Any] | None = None
        self._kept: list[Any] = []
        """Channels of the parent of a forked process: their end would wait for threads that are not
        here."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address!r})"

    def export(self, items: list[T]) -> list[Outcome]:
        """Send items; see the class for what becomes of them."""
        early = self._wait.before(self)
        if early is not None:
            return [early] * len(items)
        outcomes: list[Outcome] = [None] * len(items)
        messages, positions = [], []
        to_record = self._to_record
        for position, item in enumerate(items):
            try:
                messages.append(self._scoped(item if to_record is None else to_record(item)))
            except Exception as error:
                outcomes[position] = NotDelivered(error, retry=False)
            else:
                positions.append(position)
        for position, outcome in zip(positions, send_in_halves(messages, self._send), strict=True):
            outcomes[position] = outcome
        return outcomes

    def disconnect(self) -> None:
        """Close the connection."""
        channel, self._channel, self._call = self._channel, None, None
        if channel is not None:
            channel.close()

    def forget(self) -> None:
        """Drop the connection of the parent."""
        self._kept.append((self._channel, self._call))
        self._channel = self._call = None

    # What the kinds define.

    def _classes(self) -> tuple[Any, Any]:
        """Return the classes of a message and of a response."""
        raise NotImplementedError

    def _request(self, resource: Any, scopes: list[tuple[Any, list[Any]]]) -> Any:
        """Return a request with messages by scope."""
        raise NotImplementedError

    def _rejected(self, partial_success: Any) -> int:
        """Return how many the server has rejected."""
        raise NotImplementedError

    def _count(self, message: Any) -> int:
        """Return how many the server counts in a message."""
        del message
        return 1

    # Requests.

    def _scoped(self, message: Any) -> _Scoped:
        """Return a message with the name of its scope."""
        if not isinstance(message, self._kind):
            what = "the item" if self._to_record is None else "what to_record returned"
            raise TypeError(
                f"{what} is {a_type(message)}; give a {self._kind.__name__} of "
                "opentelemetry-proto, for instance by to_record=function"
            )
        return message, self._scope or ""

    def _send(self, part: list[_Scoped]) -> Sequence[Outcome] | Halve:
        """Send one request, and find out what an error means for what is in it."""
        import grpc
        from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
        from opentelemetry.proto.resource.v1.resource_pb2 import Resource

        by_scope: dict[str, list[Any]] = {}
        for message, name in part:
            by_scope.setdefault(name, []).append(message)
        scopes: list[tuple[Any, list[Any]]] = [
            (InstrumentationScope(name=name, attributes=self._scope_attributes), messages)
            for name, messages in by_scope.items()
        ]
        request = self._request(Resource(attributes=self._resource), scopes).SerializeToString()
        if len(request) > self._max_bytes and len(part) > 1:
            return Halve(OtlpRefused("RESOURCE_EXHAUSTED"))  # nothing was sent yet
        metadata = self._metadata
        if self._make_headers is not None:
            metadata = _metadata(self._make_headers())
        try:
            response = self._connected()(
                request,
                timeout=self._timeout,
                metadata=metadata,
                wait_for_ready=True,
                compression=grpc.Compression.Gzip if self._gzip else None,
            )
        except grpc.RpcError as error:
            return self._failure(error, len(part))
        return self._accepted(response.partial_success, part)

    def _connected(self) -> Callable[..., Any]:
        import grpc

        if self._call is None:
            if self._make_channel is not None:
                self._channel = self._make_channel()
            elif self._is_secure:
                self._channel = grpc.secure_channel(
                    self._address, grpc.ssl_channel_credentials(), list(_OPTIONS.items())
                )
            else:
                self._channel = grpc.insecure_channel(self._address, list(_OPTIONS.items()))
            self._call = self._channel.unary_unary(
                self._method,
                response_deserializer=self._response.FromString,
            )
        return self._call

    def _failure(self, error: Any, count: int) -> Sequence[Outcome] | Halve:
        code, text = error.code().name, (error.details() or "")[:_SHOWN_CHARACTERS]
        refused = OtlpRefused(code, text)
        if code in ("RESOURCE_EXHAUSTED", "OUT_OF_RANGE") and _TOO_LARGE.search(text):
            return Halve(refused)
        if code in ("DEADLINE_EXCEEDED", "UNAVAILABLE"):
            self.disconnect()  # a connection that gets no answers is made anew
        wait_s = _retry_after_s(error)
        is_again = code in _AGAIN or (code == "RESOURCE_EXHAUSTED" and wait_s is not None)
        failure = NotDelivered(refused, retry=is_again)
        if is_again and wait_s is not None:
            self._wait.ask(wait_s, failure)
        return [failure] * count

    def _accepted(self, partial_success: Any, part: list[_Scoped]) -> list[Outcome]:
        """Return the outcomes after a request that the server took, perhaps not all of it."""
        outcomes: list[Outcome] = [None] * len(part)
        rejected, text = self._rejected(partial_success), partial_success.error_message
        if rejected <= 0:
            if text:
                self._warn(text)
            return outcomes
        sent = sum(self._count(message) for message, _ in part)
        reason = OtlpRefused(
            "OK",
            f"the server rejected {rejected} of {counted(sent, self._things)}, without a word on "
            f"which: {text[:_SHOWN_CHARACTERS]}",
        )
        for place in reversed(range(len(part))):
            if rejected <= 0:
                break
            outcomes[place] = NotDelivered(reason, retry=False)
            rejected -= max(1, self._count(part[place][0]))
        return outcomes

    def _warn(self, text: str) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _REPEATED_LOG_S:
            self._warned_at = now
            _log.warning("%r: the server warns: %s", self, text[:_SHOWN_CHARACTERS])


# The kinds.


class OtlpLogs(_Otlp[T]):
    """Sends log records to a collector, by OTLP over gRPC.

    Needs the extra `otlp`. Items are records of `logging`, as `batchqueue.logging.QueueHandler`
    ships them, or messages `LogRecord` of the package opentelemetry-proto. Of a record of
    `logging`, the logger is the scope, the text is the body, and levels become severity numbers;
    what `extra` adds, the place in the code and the exception are attributes. It has no trace
    context.

    Each item is delivered at least once: if an answer is lost or comes too late, the request is
    sent again.

    | the server | the items |
    |---|---|
    | cannot be reached, or does not answer in time | are tried again |
    | answers with a status that the OTLP specification wants again | are tried again, not before the wait that it asks for |
    | refuses a request as too large | are sent in halves; an item that is too large alone is a dead letter |
    | answers with another status | are dead letters |
    | takes a request, but rejects some | as many are dead letters, the last ones, because it does not say which |
    """  # noqa: E501

    _method = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
    _things = "log record"

    def _classes(self) -> tuple[Any, Any]:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
        from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as Message

        return Message, ExportLogsServiceResponse

    def _scoped(self, message: Any) -> _Scoped:
        if not isinstance(message, LogRecord):
            return super()._scoped(message)
        scope = message.name if self._scope is None else self._scope
        return log_message(message, self._scope is not None), scope

    def _request(self, resource: Any, scopes: list[tuple[Any, list[Any]]]) -> Any:
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
        from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs, ScopeLogs

        parts = [ScopeLogs(scope=scope, log_records=messages) for scope, messages in scopes]
        return ExportLogsServiceRequest(
            resource_logs=[ResourceLogs(resource=resource, scope_logs=parts)]
        )

    def _rejected(self, partial_success: Any) -> int:
        return int(partial_success.rejected_log_records)


class OtlpMetrics(_Otlp[T]):
    """Sends metrics to a collector, by OTLP over gRPC.

    Needs the extra `otlp`. Items are messages `Metric` of the package opentelemetry-proto, or what
    `to_record` makes of an item. Failures are those of `OtlpLogs`; the server counts data points.

    Each item is delivered at least once: if an answer is lost, the server gets the points again.
    That changes nothing for gauges and for cumulative sums and histograms. Deltas are counted
    twice, so give cumulative ones.
    """

    _method = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
    _things = "data point"

    def _classes(self) -> tuple[Any, Any]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceResponse,
        )
        from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

        return Metric, ExportMetricsServiceResponse

    def _request(self, resource: Any, scopes: list[tuple[Any, list[Any]]]) -> Any:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
            ExportMetricsServiceRequest,
        )
        from opentelemetry.proto.metrics.v1.metrics_pb2 import ResourceMetrics, ScopeMetrics

        parts = [ScopeMetrics(scope=scope, metrics=messages) for scope, messages in scopes]
        return ExportMetricsServiceRequest(
            resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=parts)]
        )

    def _rejected(self, partial_success: Any) -> int:
        return int(partial_success.rejected_data_points)

    def _count(self, message: Any) -> int:
        kind = message.WhichOneof("data")
        return 0 if kind is None else len(getattr(message, kind).data_points)


class OtlpTraces(_Otlp[T]):
    """Sends spans to a collector, by OTLP over gRPC.

    Needs the extra `otlp`. Items are messages `Span` of the package opentelemetry-proto, or what
    `to_record` makes of an item. Failures are those of `OtlpLogs`.

    Each item is delivered at least once: if an answer is lost, the server gets the spans again,
    with the same ids.
    """

    _method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    _things = "span"

    def _classes(self) -> tuple[Any, Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceResponse,
        )
        from opentelemetry.proto.trace.v1.trace_pb2 import Span

        return Span, ExportTraceServiceResponse

    def _request(self, resource: Any, scopes: list[tuple[Any, list[Any]]]) -> Any:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

        parts = [ScopeSpans(scope=scope, spans=messages) for scope, messages in scopes]
        return ExportTraceServiceRequest(
            resource_spans=[ResourceSpans(resource=resource, scope_spans=parts)]
        )

    def _rejected(self, partial_success: Any) -> int:
        return int(partial_success.rejected_spans)


# Records of `logging` as messages.


_NAMES = {
    "path": "code.file.path",
    "line": "code.line.number",
    "function": "code.function.name",
    "process": "process.pid",
    "thread": "thread.name",
    "taskName": "task.name",
    "exc_type": "exception.type",
    "exc_text": "exception.stacktrace",
    "stack_info": "code.stacktrace",
}
"""The fields of `batchqueue.logging.as_dict` that become attributes, by OpenTelemetry's names."""

_IN_FIELDS = ("time", "level", "logger", "message")

_formatter = logging.Formatter()


def severity_number(level: int) -> int:
    """Return the severity number of a level of `logging`, as OpenTelemetry counts.

    >>> [severity_number(level) for level in (0, 5, 10, 20, 25, 30, 40, 50, 60)]
    [0, 4, 5, 9, 12, 13, 17, 21, 24]
    """
    if level <= 0:
        return 0
    band = min(level // 10, 5)
    return 4 * band + 1 + min(level - 10 * band, 3)


def log_message(record: LogRecord, names_logger: bool) -> Any:
    """Return a record of `logging` as a message.

    Args:
        record: The record; `QueueHandler` has rendered it, or it is as `logging` made it.
        names_logger: Whether an attribute names the logger, because the scope does not.
    """
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord as Message

    fields = as_dict(record)
    info = record.exc_info
    if info and info[0] is not None and "exc_type" not in fields:
        fields["exc_type"] = info[0].__qualname__
        fields.setdefault("exc_text", _formatter.formatException(info))
    attributes = {
        _NAMES.get(name, name): value
        for name, value in fields.items()
        if name not in _IN_FIELDS and value is not None
    }
    if names_logger:
        attributes["logger.name"] = record.name
    at = round(record.created * 1_000_000) * 1_000
    number: Any = severity_number(record.levelno)
    return Message(
        time_unix_nano=at,
        observed_time_unix_nano=at,
        severity_number=number,
        severity_text=record.levelname,
        body=any_value(fields["message"]),
        attributes=key_values(attributes),
    )


# Values, addresses and errors.


def any_value(value: Any) -> Any:
    """Return a value as OTLP has it: texts, numbers, bytes, lists and maps; others as their text.

    An int that does not fit into 64 bits becomes its digits, and a surrogate in a text `?`.
    """
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

    fields: dict[str, Any]
    match value:
        case None:
            fields = {}
        case bool():
            fields = {"bool_value": value}
        case int() if -(1 << 63) <= value < 1 << 63:
            fields = {"int_value": value}
        case float():
            fields = {"double_value": value}
        case bytes():
            fields = {"bytes_value": value}
        case Mapping():
            fields = {"kvlist_value": KeyValueList(values=key_values(value))}
        case list() | tuple() | set() | frozenset():
            fields = {"array_value": ArrayValue(values=map(any_value, value))}
        case _:
            fields = {"string_value": _text(value)}
    return AnyValue(**fields)


def key_values(attributes: Mapping[Any, Any]) -> list[Any]:
    """Return attributes as OTLP has them."""
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    return [KeyValue(key=_text(key), value=any_value(each)) for key, each in attributes.items()]


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _attributes(name: str, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"{name} is {given!r}; give a dict of names and values")
    return given or {}


def _metadata(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return headers as gRPC takes them.

    Raises:
        ConfigError: A name or a value is not a str.
    """
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigError(f"the headers have {name!r} with {a_type(value)}; give texts")
    return tuple((name.lower(), value) for name, value in headers.items())


def _address(endpoint: object) -> tuple[str, bool]:
    """Return host and port of an endpoint, and whether it uses TLS."""
    with suppress(ValueError):
        parts = urlsplit(str(endpoint))
        host, port = parts.hostname, parts.port or _PORT
        if (
            host
            and "@" not in parts.netloc
            and parts.scheme in ("http", "https")
            and parts.path in ("", "/")
        ):
            name = f"[{host}]" if ":" in host else host
            return f"{name}:{port}", parts.scheme == "https"
    shown = "an address with a user" if "@" in str(endpoint) else repr(endpoint)
    raise ConfigError(
        f"endpoint is {shown}; write it as 'http://host:4317', or 'https://host:4317' with TLS, "
        "without a user or a path"
    )


def _retry_after_s(error: Any) -> float | None:
    """Return the seconds of a `RetryInfo` among the details of a status; None without one."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    for name, value in error.trailing_metadata() or ():
        if name != "grpc-status-details-bin":
            continue
        try:
            details = Status.FromString(value).details
            for each in details:
                info = RetryInfo()
                if each.Unpack(info):
                    return max(0.0, float(info.retry_delay.ToTimedelta().total_seconds()))
        except DecodeError:
            continue
    return None
