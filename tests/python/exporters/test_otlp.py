"""Telemetry over gRPC: what each status means for the items; sent = stored + dead."""

import logging
import os
import pickle
from contextlib import contextmanager
from operator import attrgetter

import grpc
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from batchqueue import BatchQueue, ConfigError, RetryPolicy
from batchqueue.exceptions import MissingPackageError
from batchqueue.exporters import (
    ExportFailed,
    OtlpLogs,
    OtlpMetrics,
    OtlpRefused,
    OtlpTraces,
    check_exporter,
)
from batchqueue.exporters.otlp import any_value
from batchqueue.logging import QueueHandler
from core_support.proxy import Proxy
from core_support.queues import config
from core_support.scripts import run_script
from core_support.threads import in_background, join
from core_support.waits import WAIT_S, eventually
from exporters_support.otlp_server import hang, hang_stored, lost, otlp_server, partial, status
from exporters_support.queues import QUICK, exporting, send

CODES = grpc.StatusCode
AGAIN = ["CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"]
FINAL = sorted({code.name for code in CODES} - {*AGAIN, "OK"})


@pytest.fixture
def receiver():
    with otlp_server() as server:
        yield server


@pytest.fixture
def proxy(receiver):
    proxy = Proxy(receiver.port)
    yield proxy
    proxy.close()


class Logs:
    """Log records, each with a number."""

    exporter, item = OtlpLogs, LogRecord

    @staticmethod
    def make(number):
        return LogRecord(body=AnyValue(int_value=number))

    number = attrgetter("body.int_value")


class Metrics:
    """Metrics with a data point."""

    exporter, item = OtlpMetrics, Metric

    @staticmethod
    def make(number):
        return Metric(name="m", gauge=Gauge(data_points=[NumberDataPoint(as_int=number)]))

    @staticmethod
    def number(metric):
        return metric.gauge.data_points[0].as_int


class Traces:
    """Spans."""

    exporter, item = OtlpTraces, Span

    @staticmethod
    def make(number):
        return Span(name="s", span_id=number.to_bytes(8, "big"))

    @staticmethod
    def number(span):
        return int.from_bytes(span.span_id, "big")


every_kind = pytest.mark.parametrize("kind", [Logs, Metrics, Traces])


def numbers(server, kind=Logs):
    return [kind.number(message) for message in server.messages]


def some(count, kind=Logs, start=0):
    return [kind.make(number) for number in range(start, start + count)]


# Requests.


@every_kind
def test_batch_is_one_request_with_its_resource_and_scope(receiver, kind):
    exporter = kind.exporter(
        receiver.url,
        resource={"service.name": "shop", "cores": 2},
        scope="batches",
        scope_attributes={"is_test": True},
    )
    assert not send(kind.item, exporter, some(100, kind))
    assert numbers(receiver, kind) == list(range(100))
    assert len(receiver.requests) == 1
    assert {
        (each.key, each.value.WhichOneof("value"))
        for each in receiver.stored[0].resource.attributes
    } == {
        ("service.name", "string_value"),
        ("cores", "int_value"),
    }
    scope = receiver.stored[0].scope
    assert scope.name == "batches"
    assert [(each.key, each.value.bool_value) for each in scope.attributes] == [("is_test", True)]


@every_kind
def test_function_makes_the_messages(receiver, kind):
    exporter = kind.exporter(receiver.url, to_record=kind.make)
    assert not send(int, exporter, [7, 8])
    assert numbers(receiver, kind) == [7, 8]


@every_kind
@pytest.mark.parametrize(
    "to_record", [None, lambda item: item if hasattr(item, "ByteSize") else 1 / 0]
)
def test_item_that_is_not_a_message_is_refused_alone(receiver, kind, to_record):
    good = some(2, kind)
    exporter = kind.exporter(receiver.url, to_record=to_record)
    outcomes = exporter.export([good[0], "x", good[1]])
    assert [outcomes[0], outcomes[2]] == [None, None]
    assert not outcomes[1].retry
    words = f"the item is a str; give a {kind.item.__name__}" if to_record is None else "division"
    assert words in str(outcomes[1].error)
    assert numbers(receiver, kind) == [0, 1]


def test_headers_are_given_or_made_for_each_request(receiver):
    exporter = OtlpLogs(receiver.url, headers={"X-Key": "k"})
    exporter.consume(some(1))
    tokens = iter("ab")
    changing = OtlpLogs(receiver.url, headers=lambda: {"authorization": next(tokens)})
    changing.consume(some(1))
    changing.consume(some(1))
    assert receiver.requests[0].metadata["x-key"] == "k"
    assert [each.metadata["authorization"] for each in receiver.requests[1:]] == ["a", "b"]


def test_requests_are_compressed_if_asked():
    """By a server that takes no compressed requests."""
    with otlp_server([("grpc.compression_enabled_algorithms_bitset", 1)]) as server:
        assert not send(LogRecord, OtlpLogs(server.url), some(1))
        (letter,) = send(LogRecord, OtlpLogs(server.url, gzip=True), some(1))
        assert letter.error.code == "UNIMPLEMENTED"


def test_channel_may_be_made_by_the_program(receiver):
    made = []

    def channel():
        made.append(grpc.insecure_channel(f"127.0.0.1:{receiver.port}"))
        return made[-1]

    exporter = OtlpLogs("https://collector:1", channel=channel)
    exporter.consume(some(1))
    exporter.consume(some(1, start=1))
    exporter.close()
    (closed,) = made
    with pytest.raises(ValueError, match="closed"):
        closed.unary_unary("/any")(b"")
    assert numbers(receiver) == [0, 1]


# Statuses.


@every_kind
@pytest.mark.parametrize("code", AGAIN)
def test_status_that_may_change_is_tried_again(receiver, kind, code):
    receiver.script += [status(CODES[code]), status(CODES[code])]
    assert not send(kind.item, kind.exporter(receiver.url), some(5, kind))
    assert numbers(receiver, kind) == list(range(5))
    assert len(receiver.requests) == 3


@pytest.mark.parametrize("code", FINAL)
def test_status_that_will_not_change_makes_dead_letters_at_the_first_attempt(receiver, code):
    receiver.script.append(status(CODES[code], "because"))
    items = some(3)
    letters = send(LogRecord, OtlpLogs(receiver.url), items)
    assert [letter.item for letter in letters] == items
    assert {(letter.attempts, letter.error.code) for letter in letters} == {(1, code)}
    assert str(letters[0].error) == f"OTLP status {code}: because"
    copy = pickle.loads(pickle.dumps(letters[0].error))
    assert (copy.code, copy.text) == (code, "because")
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("seconds", "pauses"), [(3, [3]), (12, [5, 5, 2]), (100_000, [5, 5, 5, 5]), (0, [])]
)
def test_wait_that_the_server_asks_for_is_respected_up_to_a_limit(receiver, clock, seconds, pauses):
    receiver.script.append(status(CODES.RESOURCE_EXHAUSTED, retry_s=seconds))
    assert not send(LogRecord, OtlpLogs(receiver.url, max_retry_after=20), some(2))
    assert clock.pauses == pauses
    assert len(receiver.requests) == 2
    assert numbers(receiver) == [0, 1]


def test_wait_is_respected_with_every_status_that_is_tried_again(receiver, clock):
    receiver.script.append(status(CODES.UNAVAILABLE, retry_s=2.5))
    assert not send(LogRecord, OtlpLogs(receiver.url), some(1))
    assert clock.pauses == [2.5]


# Requests that are taken in part.


@every_kind
def test_as_many_items_as_the_server_rejects_are_dead_letters_and_never_sent_again(receiver, kind):
    receiver.script.append(partial(3, "too old"))
    items = some(10, kind)
    letters = send(kind.item, kind.exporter(receiver.url), items)
    assert [letter.item for letter in letters] == items[7:]
    assert {letter.attempts for letter in letters} == {1}
    assert letters[0].error.code == "OK"
    thing = {Logs: "log record", Metrics: "data point", Traces: "span"}[kind]
    assert f"rejected 3 of 10 {thing}s, without a word on which: too old" in str(letters[0].error)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(("rejected", "dead"), [(1, 1), (2, 1), (3, 2), (6, 3), (100, 3)])
def test_data_points_are_counted_and_not_metrics(receiver, rejected, dead):
    points = [NumberDataPoint(as_int=number) for number in range(2)]
    items = [Metric(name=f"m{number}", gauge=Gauge(data_points=points)) for number in range(3)]
    receiver.script.append(partial(rejected))
    letters = send(Metric, OtlpMetrics(receiver.url), items)
    assert [letter.item for letter in letters] == items[3 - dead :]


def test_warning_of_a_server_that_takes_all_is_logged(receiver, caplog):
    receiver.always = partial(0, "use another name")
    with (
        caplog.at_level(logging.WARNING, "batchqueue"),
        exporting(LogRecord, OtlpLogs(receiver.url), max_batch_items=1) as (queue, letters),
    ):
        queue.produce_many(some(20))
    assert not letters
    assert len(receiver.requests) == 20
    assert caplog.text.count("the server warns: use another name") == 1


# Sizes.


def test_batch_is_cut_into_requests_that_are_small_enough(receiver):
    items = [LogRecord(body=AnyValue(int_value=n), event_name="x" * 100) for n in range(100)]
    assert not send(LogRecord, OtlpLogs(receiver.url, max_request_bytes=1_000), items)
    assert numbers(receiver) == list(range(100))
    assert all(request.size <= 1_000 for request in receiver.requests)
    assert len(receiver.requests) < 20


def test_request_that_is_too_large_is_halved_down_to_the_item_that_is_too_large_alone():
    with otlp_server([("grpc.max_receive_message_length", 2_000)]) as server:
        items = [
            LogRecord(body=AnyValue(int_value=n), event_name="x" * (5_000 if n == 7 else 100))
            for n in range(50)
        ]
        letters = send(LogRecord, OtlpLogs(server.url), items)
        assert [letter.item for letter in letters] == [items[7]]
        assert letters[0].error.code == "RESOURCE_EXHAUSTED"
        assert numbers(server) == [n for n in range(50) if n != 7]


def test_requests_after_one_that_is_tried_again_wait_for_it(receiver):
    receiver.script += [status(CODES.UNAVAILABLE)]
    assert not send(LogRecord, OtlpLogs(receiver.url, max_request_bytes=1), some(5))
    assert numbers(receiver) == list(range(5))
    assert len(receiver.requests) == 6


# Outages.


@every_kind
def test_exporter_keeps_the_contract(receiver, kind):
    @contextmanager
    def outage():
        receiver.stop()
        try:
            yield
        finally:
            receiver.start()

    check_exporter(
        lambda: kind.exporter(receiver.url, timeout=8),
        lambda: numbers(receiver, kind),
        make_item=kind.make,
        key=kind.number,
        outage=outage,
    )


def test_lost_answer_sends_the_items_again(receiver, proxy):
    receiver.script.append(lost(proxy))
    exporter = OtlpLogs(f"http://127.0.0.1:{proxy.port}", timeout=5)
    with exporting(LogRecord, exporter) as (queue, letters):
        queue.produce(Logs.make(1))
        eventually(lambda: receiver.stored, "the server has stored it")
        proxy.restore()
    assert not letters
    assert numbers(receiver) == [1, 1]


@pytest.mark.parametrize(("answer", "found"), [(hang, [0, 1]), (hang_stored, [0, 1, 0, 1])])
def test_server_that_does_not_answer_in_time_is_tried_again_on_a_new_connection(
    receiver, answer, found
):
    receiver.script.append(answer)
    assert not send(LogRecord, OtlpLogs(receiver.url, timeout=3), some(2))
    assert numbers(receiver) == found
    assert len({request.peer for request in receiver.requests}) == 2


def test_server_that_is_restarted_gets_every_item(receiver):
    with exporting(LogRecord, OtlpLogs(receiver.url, timeout=2), max_batch_items=10) as (
        queue,
        letters,
    ):
        queue.produce_many(some(100))
        eventually(lambda: receiver.stored)
        receiver.stop()
        queue.produce_many(some(100, start=100))
        eventually(lambda: queue.stats().held)
        receiver.start()
    assert not letters
    assert list(dict.fromkeys(numbers(receiver))) == list(range(200))


def test_call_waits_for_a_server_that_starts(receiver):
    receiver.stop()
    states = []

    def channel():
        made = grpc.insecure_channel(f"127.0.0.1:{receiver.port}")
        made.subscribe(states.append)
        return made

    exporter = OtlpLogs(receiver.url, timeout=WAIT_S, channel=channel)
    thread, outcome = in_background(lambda: exporter.consume(some(1)))
    failure = grpc.ChannelConnectivity.TRANSIENT_FAILURE
    eventually(lambda: failure in states, "the channel has found no server")
    receiver.start()
    join(thread)
    assert outcome == [[None]]
    assert numbers(receiver) == [0]


def test_network_that_is_silent_is_tried_again(receiver, proxy):
    exporter = OtlpLogs(f"http://127.0.0.1:{proxy.port}", timeout=4)
    exporter.consume(some(1))
    proxy.stall()
    with pytest.raises(ExportFailed) as failed:
        exporter.consume(some(1, start=1))
    assert failed.value.failures[0].retry
    assert failed.value.failures[0].error.code == "DEADLINE_EXCEEDED"
    proxy.wake()
    assert not send(LogRecord, exporter, some(1, start=1), max_batch_items=1)
    assert set(numbers(receiver)) == {0, 1}


def test_attempts_that_are_used_up_make_dead_letters(receiver):
    receiver.always = status(CODES.UNAVAILABLE)
    retry = RetryPolicy(attempts=3, backoff_ms=1)
    letters = send(LogRecord, OtlpLogs(receiver.url), some(2), retry=retry)
    assert [(letter.error.code, letter.attempts) for letter in letters] == [("UNAVAILABLE", 3)] * 2
    assert isinstance(letters[0].error, OtlpRefused)


# Processes and threads.


def test_child_of_a_fork_uses_its_own_connection():
    """In a program without a server, whose threads a child lacks."""
    with otlp_server() as server:
        code, said, errors = run_script(f"""
            from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
            from opentelemetry.proto.common.v1.common_pb2 import AnyValue
            from batchqueue.exporters import OtlpLogs

            exporter = OtlpLogs({server.url!r})
            records = [LogRecord(body=AnyValue(int_value=number)) for number in range(3)]
            exporter.consume(records[:1])
            child = os.fork()
            if child == 0:
                exporter.consume(records[1:2])
                exporter.close()
                os._exit(7)
            _, code = os.waitpid(child, 0)
            say(os.waitstatus_to_exitcode(code))
            exporter.consume(records[2:])
            exporter.close()
        """)
        assert (code, said) == (0, ["7"]), errors
        assert numbers(server) == [0, 1, 2]
        peers = [request.peer for request in server.requests]
        assert peers[0] == peers[2] != peers[1]


def test_exporters_side_by_side_send_each_item_once(receiver):
    with BatchQueue("side by side", config(4, max_batch_items=50, retry=QUICK)) as queue:
        queue.add_handler_factory(LogRecord, lambda: OtlpLogs(receiver.url), partitions=4)
        queue.produce_many(some(2_000))
    assert sorted(numbers(receiver)) == list(range(2_000))


# Records of `logging`.


def attributes_of(message):
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in message.attributes
    }


def test_records_of_logging_are_sent_as_opentelemetry_describes_them(receiver):
    handler = QueueHandler(OtlpLogs(receiver.url, resource={"service.name": "shop"}))
    shop, stock = logging.Logger("shop"), logging.Logger("shop.stock")
    for logger in (shop, stock):
        logger.addHandler(handler)
    shop.info("order %d paid", 7, extra={"cents": 500, "tags": ["a"], "none": None})
    try:
        raise LookupError("gone")
    except LookupError:
        stock.exception("failed")
    handler.close()
    paid, failed = receiver.stored
    assert (paid.scope.name, failed.scope.name) == ("shop", "shop.stock")
    first = attributes_of(paid.message)
    assert paid.message.body.string_value == "order 7 paid"
    assert (paid.message.severity_number, paid.message.severity_text) == (9, "INFO")
    assert paid.message.time_unix_nano == paid.message.observed_time_unix_nano > 1e18
    assert paid.message.trace_id == paid.message.span_id == b""
    assert (first["cents"], first["process.pid"]) == (500, os.getpid())
    assert first["code.file.path"] == __file__
    assert (
        first["code.function.name"]
        == "test_records_of_logging_are_sent_as_opentelemetry_describes_them"
    )
    assert first["code.line.number"] > 0
    assert [each.string_value for each in first["tags"].values] == ["a"]
    assert not {"none", "exception.type", "time", "message"} & first.keys()
    second = attributes_of(failed.message)
    assert (failed.message.severity_number, failed.message.severity_text) == (17, "ERROR")
    assert second["exception.type"] == "LookupError"
    assert "LookupError: gone" in second["exception.stacktrace"]


def test_record_of_logging_that_no_handler_has_rendered_is_sent_with_its_exception(receiver):
    try:
        raise LookupError("gone")
    except LookupError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("shop", logging.WARNING, __file__, 1, "%s!", ("odd",), info)
    OtlpLogs(receiver.url, scope="mine").consume([record])
    (stored,) = receiver.stored
    assert (stored.scope.name, stored.message.body.string_value) == ("mine", "odd!")
    found = attributes_of(stored.message)
    assert found["exception.type"] == "LookupError"
    assert "LookupError: gone" in found["exception.stacktrace"]
    assert found["logger.name"] == "shop"


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        (True, "bool_value", True),
        (-7, "int_value", -7),
        (1 << 63, "string_value", "9223372036854775808"),
        (0.5, "double_value", 0.5),
        ("\ud800ä", "string_value", "?ä"),
        (b"\xff", "bytes_value", b"\xff"),
        (None, None, None),
        (OSError("no"), "string_value", "no"),
    ],
)
def test_values_become_those_of_otlp(value, kind, found):
    made = any_value({"deep": [value]}).kvlist_value.values[0]
    assert made.key == "deep"
    (inner,) = made.value.array_value.values
    assert inner.WhichOneof("value") == kind
    assert kind is None or getattr(inner, kind) == found


# Arguments.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "collector:4317"}, "endpoint is 'collector:4317'; write it as"),
        ({"endpoint": "http://host:x"}, "endpoint is"),
        ({"endpoint": "http://host/v1/logs"}, "without a user or a path"),
        ({"endpoint": None}, "endpoint is None"),
        ({"to_record": 1}, "to_record is 1; it must be callable"),
        ({"resource": [1]}, r"resource is \[1\]; give a dict"),
        ({"scope": 1}, "scope is 1, an int; give a name, or None"),
        ({"scope_attributes": "x"}, "scope_attributes is 'x'"),
        ({"headers": {"a": 1}}, "the headers have 'a' with an int; give texts"),
        ({"headers": 1}, "headers is 1"),
        ({"gzip": 1}, "gzip is 1"),
        ({"timeout": 0}, "timeout is 0; give seconds above 0"),
        ({"max_request_bytes": 0}, "max_request_bytes is 0"),
        ({"max_retry_after": -1}, "max_retry_after is -1"),
        ({"channel": 1}, "channel is 1"),
    ],
)
@every_kind
def test_invalid_argument_is_refused(kind, options, words):
    with pytest.raises(ConfigError, match=words):
        kind.exporter(**{"endpoint": "http://host", **options})


def test_password_of_an_endpoint_is_never_shown():
    with pytest.raises(ConfigError) as refused:
        OtlpLogs("http://me:secret@host")
    assert "secret" not in str(refused.value)
    assert repr(OtlpLogs("https://host", headers={"authorization": "secret"})) == (
        "OtlpLogs('host:4317')"
    )


def test_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    with pytest.raises(MissingPackageError, match=r"OtlpTraces.*batchqueue-rs\[otlp\]"):
        OtlpTraces("http://host")
