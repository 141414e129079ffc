"""A receiver of OTLP over gRPC on loopback that stores, and misbehaves as a test says."""

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace

from core_support.waits import WAIT_S

_SERVICES = {
    "opentelemetry.proto.collector.logs.v1.LogsService": (
        logs.ExportLogsServiceRequest,
        logs.ExportLogsServiceResponse,
        "rejected_log_records",
    ),
    "opentelemetry.proto.collector.metrics.v1.MetricsService": (
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        "rejected_data_points",
    ),
    "opentelemetry.proto.collector.trace.v1.TraceService": (
        trace.ExportTraceServiceRequest,
        trace.ExportTraceServiceResponse,
        "rejected_spans",
    ),
}


class Stored(NamedTuple):
    """A message, with what is around it."""

    message: object
    scope: object
    resource: object


class OtlpRequest(NamedTuple):
    """What the server got."""

    stored: list
    metadata: dict
    size: int
    peer: str
    response: type
    rejected: str


class OtlpServer:
    """Stores the messages of each request that no answer of `script` takes.

    Attributes:
        stored: The messages, in the order of arrival.
        requests: All requests, refused ones included.
        script: Answers for the next requests: functions of the server, the request and its context.
        always: The answer after those. Default: None, it stores.
    """

    def __init__(self, options=()):
        self.stored, self.requests, self.script, self.always = [], [], deque(), None
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.port = 0
        self._options = [("grpc.so_reuseport", 0), *options]
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def messages(self):
        return [each.message for each in self.stored]

    def start(self):
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool, options=self._options)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(service, {"Export": self._handler(*classes)})
                for service, classes in _SERVICES.items()
            ]
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self):
        """Refuses connections and cuts those that are open."""
        self._server.stop(0).wait(WAIT_S)

    def close(self):
        self.released.set()
        self.stop()
        self._pool.shutdown()

    def _handler(self, request_class, response, rejected):
        def export(request, context):
            got = OtlpRequest(
                list(_messages(request)),
                dict(context.invocation_metadata()),
                request.ByteSize(),
                context.peer(),
                response,
                rejected,
            )
            with self.lock:
                self.requests.append(got)
                act = self.script.popleft() if self.script else self.always
            return (act or accept)(self, got, context)

        return grpc.unary_unary_rpc_method_handler(
            export, request_class.FromString, response.SerializeToString
        )

    def store(self, request, count=None):
        with self.lock:
            self.stored += request.stored[:count]


def _messages(request):
    (resources,) = (value for _, value in request.ListFields())
    for each in resources:
        for inner in each.ListFields():
            if inner[0].name.startswith("scope_"):
                for scope in inner[1]:
                    for kind, messages in scope.ListFields():
                        if kind.name in ("log_records", "metrics", "spans"):
                            for message in messages:
                                yield Stored(message, scope.scope, each.resource)


# Answers.


def accept(server, request, _context):
    """Stores the messages."""
    server.store(request)
    return request.response()


def partial(rejected, text="odd"):
    """Stores the messages except some, and says how many."""

    def act(server, request, _context):
        server.store(request, len(request.stored) - rejected)
        response = request.response()
        setattr(response.partial_success, request.rejected, rejected)
        response.partial_success.error_message = text
        return response

    return act


def status(code, text="no", retry_s=None):
    """Refuses the messages, perhaps with a `RetryInfo`."""

    def act(_server, _request, context):
        if retry_s is not None:
            detail = AnyMessage()
            delay = Duration()
            delay.FromNanoseconds(round(retry_s * 1e9))
            detail.Pack(RetryInfo(retry_delay=delay))
            details = Status(code=code.value[0], message=text, details=[detail])
            context.set_trailing_metadata(
                [("grpc-status-details-bin", details.SerializeToString())]
            )
        context.abort(code, text)

    return act


def lost(proxy):
    """Stores the messages, and cuts the network of the client before the answer."""

    def act(server, request, _context):
        server.store(request)
        proxy.cut()
        return request.response()

    return act


def hang(server, request, _context):
    """Stores nothing, and does not answer until the test ends."""
    server.released.wait(WAIT_S)
    return request.response()


def hang_stored(server, request, _context):
    """Stores the messages, and does not answer until the test ends."""
    server.store(request)
    server.released.wait(WAIT_S)
    return request.response()


@contextmanager
def otlp_server(options=()):
    server = OtlpServer(options)
    try:
        yield server
    finally:
        server.close()
