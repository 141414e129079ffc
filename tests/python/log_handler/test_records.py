"""What a target gets: copies of records, rendered in the caller, or what is made of them."""

import json
import logging
import pickle
import sys
import threading

import pytest

from batchqueue import BatchFailed, ConfigError
from batchqueue.logging import as_dict, as_json
from core_support.waits import WAIT_S


class Order:
    def __init__(self, number):
        self.number = number

    def __str__(self):
        return f"order {self.number}"


def test_a_record_is_that_of_the_call_with_its_message_rendered_there(add, target):
    log, handler = add(target)
    order = Order(1)
    log.warning("%s is late", order, extra={"shop": "oslo"}, stack_info=True)
    order.number = 2
    assert handler.flush(WAIT_S)
    [record] = target.items
    assert (record.message, record.msg, record.args) == ("order 1 is late", "order 1 is late", None)
    assert record.getMessage() == "order 1 is late"
    assert (record.name, record.levelname, record.shop) == (log.name, "WARNING", "oslo")
    assert record.funcName == "test_a_record_is_that_of_the_call_with_its_message_rendered_there"
    assert record.threadName == "MainThread"
    assert "log.warning" in record.stack_info
    assert pickle.loads(pickle.dumps(record)).message == "order 1 is late"


def test_other_handlers_see_the_record_as_it_was_and_do_not_change_that_of_the_target(add, target):
    log, handler = add(target)
    seen = []

    class Later(logging.Handler):
        def emit(self, record):
            seen.append((record.msg, record.args, record.exc_info, record.exc_text))
            record.msg, record.levelname = "changed", "changed"

    log.addHandler(Later())
    with target.held():
        try:
            raise ValueError("bad")
        except ValueError:
            info = sys.exc_info()
            log.exception("in %s", "oslo")
    assert handler.flush(WAIT_S)
    assert seen == [("in %s", ("oslo",), info, None)]
    assert [(each.msg, each.levelname) for each in target.items] == [("in oslo", "ERROR")]


def test_an_exception_is_a_text_and_keeps_no_frame_alive(add, target):
    log, handler = add(target)
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("failed")
    log.error("nothing is handled here", exc_info=True)
    assert handler.flush(WAIT_S)
    first, second = target.items
    assert (first.message, first.exc_info, first.exc_type) == ("failed", None, "ValueError")
    assert first.exc_text.startswith("Traceback")
    assert first.exc_text.endswith("ValueError: bad")
    assert logging.Formatter().format(first) == f"failed\n{first.exc_text}"
    assert (second.exc_info, second.exc_text) == (None, None)


def test_a_record_of_another_class_keeps_its_class_and_its_way_of_rendering(add, target):
    class Braces(logging.LogRecord):
        def getMessage(self):
            return str(self.msg).format(*(self.args or ()))

    log, handler = add(target)
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(Braces)
    try:
        log.info("{} is {}", 1, 2)  # noqa: PLE1205 - the style of the class
    finally:
        logging.setLogRecordFactory(factory)
    assert handler.flush(WAIT_S)
    [record] = target.items
    assert type(record) is Braces
    assert record.message == "1 is 2"


def test_messages_that_are_not_texts_are_rendered(add, target):
    class Text(str):
        __slots__ = ()

    log, handler = add(target)
    log.info(Order(3))
    log.info({"a": 1})
    log.info(Text("%(a)s"), {"a": 1})
    log.info(Text("100 %"))
    assert handler.flush(WAIT_S)
    assert target.messages == ["order 3", "{'a': 1}", "1", "100 %"]
    assert {type(message) for message in target.messages} == {str}


def test_levels_and_filters_apply_in_the_caller(add, target):
    log, handler = add(target, level="WARNING")
    handler.addFilter(lambda record: "secret" not in record.getMessage())
    log.info("too low")
    log.warning("a secret")
    log.warning("shown")
    assert handler.flush(WAIT_S)
    assert target.messages == ["shown"]


def test_a_formatter_makes_texts_in_the_drain_thread(add, target):
    class Formatter(logging.Formatter):
        def format(self, record):
            return f"{threading.current_thread().name}: {super().format(record)}"

        def formatException(self, info):
            return f"<{info[1]}>"

    log, handler = add(target, items="text", name="texts")
    handler.setFormatter(Formatter("%(levelname)s %(message)s"))
    log.info("first")
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("second")
    assert handler.flush(WAIT_S)
    assert [text.partition(": ")[2] for text in target.items] == [
        "INFO first",
        "ERROR second\n<bad>",
    ]
    assert all("texts" in text.partition(": ")[0] for text in target.items)


def test_a_formatter_that_fails_costs_no_record(add, target, capsys):
    class Formatter(logging.Formatter):
        def format(self, record):
            if record.message == "bad":
                raise ValueError("of the formatter")
            return super().format(record)

    log, handler = add(target, items="text")
    handler.setFormatter(Formatter("<%(message)s>"))
    for message in ("good", "bad", "better"):
        log.info(message)
    assert handler.flush(WAIT_S)
    assert target.items == ["<good>", "bad", "<better>"]
    assert "of the formatter" in capsys.readouterr().err


def test_dicts_have_the_fields_and_what_extra_adds(add, target):
    log, handler = add(target, items="dicts")
    log.info("paid", extra={"order": 7, "level": "of the program"})
    try:
        raise KeyError("bad")
    except KeyError:
        log.exception("failed")
    assert handler.flush(WAIT_S)
    paid, failed = target.items
    assert (paid["level"], paid["logger"], paid["message"]) == ("INFO", log.name, "paid")
    assert (paid["order"], paid["level_"], paid["thread"]) == (7, "of the program", "MainThread")
    assert paid["time"].endswith("+00:00")
    assert not {"exc_text", "args", "msg", "stack_info"} & paid.keys()
    assert failed["exc_type"] == "KeyError"
    assert "KeyError: 'bad'" in failed["exc_text"]


class Unshown:
    def __repr__(self):
        raise RuntimeError("no repr")


def circle():
    values = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Order, repr(Order)),
        (float("nan"), "nan"),
        (circle(), "[[...]]"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (Unshown(), "<Unshown whose repr raised RuntimeError>"),
        ("\ud800\n", "\ud800\n"),
    ],
    ids=["class", "nan", "circle", "key", "no repr", "surrogate"],
)
def test_json_is_one_valid_line_whatever_extra_holds(add, target, value, shown):
    log, handler = add(target, items="json")
    log.info("paid", extra={"value": value})
    assert handler.flush(WAIT_S)
    [line] = target.items
    assert "\n" not in line
    assert line.isascii()
    fields = json.loads(line)
    assert (fields["message"], fields["value"]) == ("paid", shown)


def test_the_helpers_take_records_that_no_handler_has_prepared():
    record = logging.makeLogRecord({"msg": "%d paid", "args": (2,), "levelname": "INFO"})
    assert as_dict(record)["message"] == "2 paid"
    assert json.loads(as_json(record))["message"] == "2 paid"


def test_a_handler_of_logging_is_a_target_with_its_level_and_formatter(add):
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(self.format(record))

    inner = Lines(level="WARNING")
    inner.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    log, handler = add(inner)
    log.info("too low")
    log.error("%s", "shown")
    assert handler.flush(WAIT_S)
    assert lines == ["ERROR shown"]


@pytest.mark.parametrize("named_by", ["items", "indexes", "returned"])
@pytest.mark.parametrize("items", ["records", "dicts"])
def test_only_the_records_that_a_target_names_are_tried_again(add, named_by, items):
    calls = []

    def consume(batch):
        messages = [each["message"] if items == "dicts" else each.message for each in batch]
        calls.append(messages)
        if len(calls) > 1:
            return None
        failed = [each for each, message in zip(batch, messages, strict=True) if message == "0"]
        index = messages.index("0")
        if named_by == "indexes":
            raise BatchFailed(indexes=[index])
        batch.reverse()
        if named_by == "items":
            raise BatchFailed(failed)
        return BatchFailed(failed)

    log, handler = add(
        consume, items=items, retry={"attempts": 2, "backoff_ms": 0}, max_delay_ms=60_000
    )
    for number in range(3):
        log.info("%d", number)
    assert handler.flush(WAIT_S)
    assert calls == [["0", "1", "2"], ["0"]]
    assert handler.stats().delivered == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"items": "xml"}, "items"),
        ({"block_s": -1}, "block_s"),
        ({"block_s": float("inf")}, "block_s"),
        ({"shutdown_timeout": None}, "shutdown_timeout"),
        ({"buffer_size": 0}, "buffer_size"),
        ({"retry": {"attempts": 0}}, "attempts"),
        ({"name": ""}, "name"),
        ({"target": 3}, "int"),
        ({"target": "no.such.module"}, "no.such.module"),
        ({"target": {"factory": "x"}}, '"()"'),
        ({"fallback": {"factory": "x"}}, '"()"'),
        ({"target": logging.NullHandler(), "items": "json"}, "items"),
    ],
)
def test_a_wrong_argument_is_named_when_the_handler_is_made(add, options, named):
    with pytest.raises(ConfigError, match=named.replace("(", r"\(").replace(")", r"\)")):
        add(**{"target": print, **options})
