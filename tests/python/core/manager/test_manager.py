"""The manager: queues by name, and the settings it compares when a name exists."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from batchqueue import (
    BatchQueue,
    BufferStrategy,
    ConfigError,
    PartitionPolicy,
    ThreadPolicy,
)
from core_support.handlers import Recorder
from core_support.held_log import held_log
from core_support.queues import config
from core_support.threads import run_threads
from core_support.waits import WAIT_S


def test_create_registers_in_order_of_creation(manager):
    queues = [manager.create(name, config()) for name in ("c", "a", "b")]
    assert manager.names() == ["c", "a", "b"]
    assert [manager.get(name) for name in "cab"] == queues
    assert manager.get("d") is None
    assert all(type(queue) is BatchQueue for queue in queues)


def test_plain_queue_is_not_registered(manager, make_queue):
    make_queue("plain")
    assert manager.names() == []


def test_taken_name_is_rejected(manager):
    first = manager.create("orders", config())
    with pytest.raises(ConfigError, match=r"'orders' is taken.*choose another.*create_if_absent"):
        manager.create("orders", config())
    assert manager.get("orders") is first
    assert first.running


def test_queue_that_cannot_be_made_is_not_registered(manager):
    with pytest.raises(ZeroDivisionError):
        manager.create("broken", config(consumer_factory=lambda: 1 // 0))
    with pytest.raises(ConfigError):
        manager.create("", config())
    assert manager.names() == []


def test_create_if_absent_returns_the_same_queue(manager, caplog):
    first = manager.create_if_absent("orders", config())
    assert manager.create_if_absent("orders", config()) is first
    assert manager.names() == ["orders"]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("setting", "has", "asked", "words"),
    [
        ("threads", ThreadPolicy.fixed(1), ThreadPolicy.fixed(2), ["fixed(1)", "fixed(2)"]),
        (
            "partitions",
            PartitionPolicy.fixed(1),
            PartitionPolicy.adaptive(),
            ["fixed(1)", "adaptive(25)"],
        ),
        ("buffer_size", 10, 20, ["10", "20"]),
        (
            "strategy",
            BufferStrategy.BLOCKING,
            BufferStrategy.IF_POSSIBLE,
            ["BLOCKING", "IF_POSSIBLE"],
        ),
    ],
)
def test_create_if_absent_warns_about_each_difference_with_both_values(
    manager, caplog, setting, has, asked, words
):
    from batchqueue import BatchQueueConfig

    settings = {"threads": ThreadPolicy.fixed(1)}
    first = manager.create("orders", BatchQueueConfig(**settings | {setting: has}))
    assert (
        manager.create_if_absent("orders", BatchQueueConfig(**settings | {setting: asked})) is first
    )
    (line,) = [record.getMessage() for record in caplog.records if record.name == "batchqueue"]
    assert all(word in line for word in ["orders", setting, *words])


def test_create_if_absent_rejects_another_mode(manager):
    manager.create("handlers", config())
    manager.create("consumer", config(consumer=len))
    for name, other in (
        ("handlers", config(consumer=len)),
        ("handlers", config(consumer_factory=Recorder)),
        ("consumer", config()),
    ):
        with pytest.raises(
            ConfigError, match=rf"'{name}' exists with .*requested with.*another name"
        ):
            manager.create_if_absent(name, other)
    assert manager.names() == ["handlers", "consumer"]


def test_concurrent_create_if_absent_returns_one_queue(manager):
    got = []
    run_threads(*[lambda: got.append(manager.create_if_absent("orders", config()))] * 8)
    assert len({id(queue) for queue in got}) == 1
    assert manager.names() == ["orders"]


@pytest.mark.parametrize(
    ("has", "asked", "named"),
    [
        (
            {"shared_scheduler": ("io", ThreadPolicy.fixed(1))},
            {"threads": ThreadPolicy.fixed(2)},
            {"threads": ["None", "fixed(2)"]},
        ),
        (
            {"threads": ThreadPolicy.cpu_cores(0.5)},
            {"threads": ThreadPolicy.cpu_cores_with_base(1, 0.25)},
            {"threads": ["cpu_cores(0.5)", "cpu_cores_with_base(1, 0.25)"]},
        ),
        (
            {
                "threads": ThreadPolicy.fixed(1),
                "buffer_size": 5,
                "strategy": BufferStrategy.IF_POSSIBLE,
            },
            {
                "threads": ThreadPolicy.fixed(1),
                "partitions": PartitionPolicy.thread_multiply(2),
                "buffer_size": 6,
            },
            {
                "partitions": ["fixed(1)", "thread_multiply(2)"],
                "buffer_size": ["5", "6"],
                "strategy": ["IF_POSSIBLE", "BLOCKING"],
            },
        ),
    ],
    ids=["shared and own", "other policy", "three together"],
)
def test_each_setting_that_differs_has_its_own_warning(manager, caplog, has, asked, named):
    from batchqueue import BatchQueueConfig

    first = manager.create("orders", BatchQueueConfig(**has))
    assert manager.create_if_absent("orders", BatchQueueConfig(**asked)) is first
    lines = [record.getMessage() for record in caplog.records if record.name == "batchqueue"]
    for setting, values in named.items():
        (line,) = [line for line in lines if f"{setting}=" in line]
        assert "queue orders" in line
        assert all(value in line for value in values), line


def test_settings_that_may_differ_do_not_warn(manager, caplog):
    first = manager.create("orders", config())
    other = config(
        error_handler=lambda *_: None, min_idle_ms=3, max_batch_items=7, rebalance_interval_ms=5
    )
    assert manager.create_if_absent("orders", other) is first
    assert caplog.records == []


def test_mode_is_compared_as_consumer_or_handlers(manager):
    """A consumer and a factory are both consumers."""
    first = manager.create("orders", config(consumer=len))
    assert manager.create_if_absent("orders", config(consumer_factory=Recorder)) is first


def test_a_log_that_hangs_holds_up_no_other_caller(manager):
    manager.create("a", config())
    with ThreadPoolExecutor(2) as pool, held_log("exists with") as handler:
        waiting = pool.submit(manager.create_if_absent, "a", config(buffer_size=7))
        assert handler.entered.wait(WAIT_S)
        assert pool.submit(manager.names).result(WAIT_S) == ["a"]
        assert not waiting.done()
