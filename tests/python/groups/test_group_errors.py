"""The errors of groups: messages with value, limit and remedy, and errors that can be pickled."""

import copy
import inspect
import pickle

import pytest

from batchqueue import BatchQueueError
from batchqueue.groups import errors
from batchqueue.groups.errors import (
    CallRefusedError,
    CodecError,
    HandlerFailedError,
    KafkaRefusedError,
    OffsetError,
    RecordTooLargeError,
    ReplacedError,
    StaleTokenError,
    StreamFullError,
    StreamUnavailableError,
    TruncatedError,
    UnhandledRecordError,
)


class NeedsTwoError(Exception):
    """Can be pickled, and fails to load, like many an exception with arguments."""

    def __init__(self, first, second):
        super().__init__(f"{first}{second}")


FAILED = {"first": 10, "last": 19, "tries": 5}
EXAMPLES = [
    (
        StaleTokenError("orders", 7, 1763_01, 1763_55, "b"),
        "orders/7: token 176301 is older than 176355 of worker b: this worker lost the partition; "
        "nothing was stored",
    ),
    (
        StaleTokenError("orders", 7, 1, 2),
        "orders/7: token 1 is older than 2: this worker lost the partition; nothing was stored",
    ),
    (
        ReplacedError("etl-3", "b", 812),
        'worker "etl-3" was replaced by another process (host b, pid 812): '
        "give each process its own name, or none",
    ),
    (
        ReplacedError("etl-3"),
        'worker "etl-3" was replaced by another process: give each process its own name, or none',
    ),
    (
        HandlerFailedError("orders", 7, **FAILED, cause=ValueError("bad cents")),
        "orders/7: offsets 10..19 failed 5 times, last: ValueError('bad cents'): "
        "fix the handler, or use OnFailure.DEAD_LETTER",
    ),
    (
        HandlerFailedError("orders", 7, first=3, last=3, tries=1, cause=KeyError("id")),
        "orders/7: offsets 3..3 failed 1 time, last: KeyError('id'): "
        "fix the handler, or use OnFailure.DEAD_LETTER",
    ),
    (
        TruncatedError("orders", 7, 42, 1_200),
        "orders/7: 1,200 records after offset 42 were trimmed before they were read: "
        'raise the retention, or on_gap="skip"',
    ),
    (
        StreamUnavailableError("orders", "Connection refused"),
        "stream orders: Connection refused: check whether its server runs",
    ),
    (
        StreamFullError("orders", 7, 1_000_000, accepted=12),
        "orders/7 holds 1,000,000 unread records (max_len): add workers, or wait",
    ),
    (
        UnhandledRecordError("orders", 7, 42, "dict"),
        "orders/7: no handler takes the dict at offset 42: add one for this class, or "
        "@worker.handler for all others",
    ),
    (OffsetError("5", "is not an id; give one"), "record id '5' is not an id; give one"),
    (OffsetError(-5, "is negative; give 0"), "offset -5 is negative; give 0"),
    (
        CodecError("json", "ValueError: NaN is not JSON", 42),
        "codec json cannot decode the record at offset 42: ValueError: NaN is not JSON: "
        "fix the producer, or use OnFailure.DEAD_LETTER",
    ),
    (
        CodecError("json", "TypeError: no", encoding=True),
        "codec json cannot encode the value: TypeError: no: "
        "send a value that it takes, or choose another codec",
    ),
    (
        RecordTooLargeError("json", 20_000_000, 16 << 20, 42),
        "codec json: the record at offset 42 has 20,000,000 bytes, and max_record_bytes is "
        "16,777,216: send smaller records, or raise max_record_bytes",
    ),
    (
        CallRefusedError("orders", 7, "to open the partition", "WRONGTYPE no stream"),
        "orders/7: the server refused to open the partition: WRONGTYPE no stream: "
        "repair the key, or fix the command",
    ),
    (
        HandlerFailedError(
            "orders", 7, **FAILED, cause=CallRefusedError("orders", 7, "SET", "WRONGTYPE")
        ),
        "orders/7: offsets 10..19 failed 5 times, last: the server refused SET: WRONGTYPE: "
        "repair the key, or fix the command",
    ),
    (
        KafkaRefusedError(
            "orders: the broker refused: no access: give this user READ on the topic"
        ),
        "orders: the broker refused: no access: give this user READ on the topic",
    ),
    (
        HandlerFailedError(
            "orders", 7, **FAILED, cause=KafkaRefusedError("orders/7: no access: give it")
        ),
        "orders/7: offsets 10..19 failed 5 times, last: orders/7: no access: give it",
    ),
]
IDS = [f"{type(error).__name__}-{number}" for number, (error, _) in enumerate(EXAMPLES)]


def fields(error):
    """Returns the attributes of an error, exceptions among them by their text."""
    return {
        name: repr(value) if isinstance(value, BaseException) else value
        for name, value in vars(error).items()
    }


@pytest.mark.parametrize(("error", "message"), EXAMPLES, ids=IDS)
def test_message_holds_value_limit_and_remedy(error, message):
    assert str(error) == message


@pytest.mark.parametrize("transfer", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize("error", [error for error, _ in EXAMPLES], ids=IDS)
def test_error_keeps_its_class_its_fields_and_its_message_when_pickled(error, transfer):
    arrived = transfer(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert fields(arrived) == fields(error)
    assert arrived.args == error.args


def test_every_error_of_groups_has_an_example_and_derives_from_the_base_of_the_package():
    defined = {
        value
        for name, value in vars(errors).items()
        if not name.startswith("_")
        and inspect.isclass(value)
        and value.__module__ == errors.__name__
    }
    assert defined == {type(error) for error, _ in EXAMPLES}
    assert all(issubclass(kind, BatchQueueError) for kind in defined)


def test_fields_are_attributes():
    stale, _ = EXAMPLES[0]
    full, _ = EXAMPLES[8]
    assert (stale.stream, stale.partition, stale.token) == ("orders", 7, 176301)
    assert (stale.seen, stale.owner) == (176355, "b")
    assert (full.max_len, full.accepted) == (1_000_000, 12)


def test_cause_of_a_failed_handler_is_the_cause_of_the_error_also_after_pickling():
    error = HandlerFailedError("orders", 7, **FAILED, cause=ValueError("bad cents"))
    assert error.__cause__ is error.cause
    arrived = pickle.loads(pickle.dumps(error))
    assert repr(arrived.cause) == repr(arrived.__cause__) == "ValueError('bad cents')"


@pytest.mark.parametrize(
    "cause", [NeedsTwoError("a", "b"), ValueError(lambda: None)], ids=["loads", "dumps"]
)
def test_cause_that_cannot_be_pickled_leaves_its_text(cause):
    error = HandlerFailedError("orders", 7, **FAILED, cause=cause)
    arrived = pickle.loads(pickle.dumps(error))
    assert arrived.cause is None
    assert arrived.reason == repr(cause)
    assert str(arrived) == str(error)


def test_message_does_not_quote_a_whole_record():
    cause = UnicodeDecodeError("utf-8", b"x" * 1_000_000, 0, 1, "invalid start byte")
    error = HandlerFailedError("orders", 7, **FAILED, cause=cause)
    assert len(str(error)) < 400
    assert "UnicodeDecodeError" in str(error)
