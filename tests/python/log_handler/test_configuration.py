"""`logging.config`: plain dicts, factories, and targets that are named or configured there."""

import logging
import logging.config

import pytest

from batchqueue import ConfigError
from batchqueue.logging import QueueHandler
from core_support.waits import WAIT_S

shipped: list = []


class Http:
    """A target that is made by a factory, as an exporter is."""

    def __init__(self, url, *, timeout_s=1.0):
        self.url, self.timeout_s = url, timeout_s

    def consume(self, batch):
        shipped.extend((self.url, self.timeout_s, item) for item in batch)


class Lines(logging.Handler):
    def emit(self, record):
        shipped.append(self.format(record))


@pytest.fixture
def configure():
    """Configures the logger `configured`, and removes its handlers afterwards."""
    shipped.clear()
    log = logging.getLogger("configured")

    def configure(handlers, **others):
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "handlers": handlers,
                "loggers": {"configured": {"level": "DEBUG", "handlers": ["queue"]}},
                **others,
            }
        )
        return log, log.handlers[-1]

    yield configure
    for handler in log.handlers[:]:
        log.removeHandler(handler)
        handler.close()


def test_a_plain_dict_names_the_target_and_the_settings(configure):
    log, handler = configure(
        {
            "queue": {
                "class": "batchqueue.logging.QueueHandler",
                "target": f"{__name__}.shipped.extend",
                "items": "text",
                "level": "INFO",
                "formatter": "short",
                "filters": ["no_secrets"],
                "buffer_size": 100,
                "max_delay_ms": 10,
                "retry": {"attempts": 2, "backoff_ms": 1},
            }
        },
        formatters={"short": {"format": "%(levelname)s %(message)s"}},
        filters={"no_secrets": {"()": lambda: lambda record: "secret" not in record.msg}},
    )
    log.debug("too low")
    log.info("%s", "shown")
    log.info("secret")
    assert handler.flush(WAIT_S)
    assert shipped == ["INFO shown"]
    assert handler._config.buffer_size == 100
    assert handler._config.retry.attempts == 2


def test_a_target_is_made_by_a_factory(configure):
    log, handler = configure(
        {
            "queue": {
                "class": "batchqueue.logging.QueueHandler",
                "target": {"()": f"{__name__}:Http", "url": "http://logs", "timeout_s": 2.5},
                "items": "json",
            }
        }
    )
    log.info("shown")
    assert handler.flush(WAIT_S)
    [(url, timeout_s, line)] = shipped
    assert (url, timeout_s) == ("http://logs", 2.5)
    assert '"message": "shown"' in line


def test_the_handler_is_made_by_a_factory(configure):
    log, handler = configure({"queue": {"()": lambda: QueueHandler(shipped.extend, items="text")}})
    log.info("shown")
    assert handler.flush(WAIT_S)
    assert shipped == ["shown"]


def test_a_target_is_another_handler_of_the_configuration(configure):
    log, handler = configure(
        {
            "queue": {
                "class": "batchqueue.logging.QueueHandler",
                "target": "cfg://handlers.lines",
            },
            "lines": {"class": f"{__name__}.Lines", "level": "INFO", "formatter": "short"},
        },
        formatters={"short": {"format": "%(levelname)s %(message)s"}},
    )
    log.debug("too low")
    log.info("shown")
    assert handler.flush(WAIT_S)
    assert shipped == ["INFO shown"]


def test_a_target_that_the_configuration_makes_later_is_refused_with_the_remedy(configure):
    """Handlers are made in the order of their names."""
    with pytest.raises(ValueError, match="handler 'queue'") as refused:
        configure(
            {
                "queue": {
                    "class": "batchqueue.logging.QueueHandler",
                    "target": "cfg://handlers.the_lines",
                },
                "the_lines": {"class": f"{__name__}.Lines"},
            }
        )
    assert "a name that sorts before this one" in str(refused.value.__cause__)


def test_a_second_configuration_delivers_what_the_first_accepted(configure):
    settings = {
        "queue": {
            "class": "batchqueue.logging.QueueHandler",
            "target": f"{__name__}.shipped.extend",
            "items": "text",
        }
    }
    log, first = configure(settings)
    log.info("first")
    log, second = configure(settings)
    log.info("second")
    assert first.flush(WAIT_S)
    assert second.flush(WAIT_S)
    assert sorted(shipped) == ["first", "second"]
    first.close()


def test_a_logger_that_keeps_its_handler_over_a_configuration_still_ships(configure):
    """As uvicorn does, which configures logging after the program."""
    kept = logging.getLogger("kept")
    handler = QueueHandler(shipped.extend, items="text")
    kept.addHandler(handler)
    kept.propagate = False
    try:
        kept.warning("before")
        configure({"queue": {"class": "logging.NullHandler"}})
        kept.warning("after")
        assert handler.flush(WAIT_S)
        assert shipped == ["before", "after"]
    finally:
        kept.removeHandler(handler)
        handler.close()


def test_a_handler_is_not_the_target_of_another():
    with pytest.raises(ConfigError, match="another QueueHandler"):
        QueueHandler(QueueHandler(print))
