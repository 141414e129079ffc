"""`add_handler(subclasses=True)` and `default_handler`: items whose class has no handler."""

import gc
import re
import threading
import weakref
from abc import ABC, abstractmethod

import pytest

from batchqueue import (
    AsyncBatchQueue,
    BatchQueue,
    ConfigError,
    PartitionPolicy,
    PartitionSelector,
    RetryPolicy,
)
from core_support.event_loop import run
from core_support.handlers import Recorder
from core_support.queues import assert_conserved, config
from core_support.waits import WAIT_S


class Event:
    pass


class Click(Event):
    pass


class DoubleClick(Click):
    pass


class Touch(Event):
    pass


class Task(ABC):
    @abstractmethod
    def run(self): ...


class Mail(Task):
    def run(self): ...


def test_an_abstract_class_has_a_handler_only_with_its_subclasses(make_queue):
    queue, tasks = make_queue(), Recorder()
    with pytest.raises(ConfigError, match=r"abstract class Task.*give subclasses=True"):
        queue.add_handler(Task, tasks)
    queue.add_handler(Task, tasks, subclasses=True)
    queue.add_handler(object, Recorder())
    mail = Mail()
    assert queue.produce(mail)
    assert queue.shutdown(WAIT_S) == 0
    assert tasks.items == [mail]


def ways(queue):
    """Each way to enqueue items."""
    return [
        lambda items: all(queue.produce(item) for item in items),
        lambda items: queue.produce_many(list(items)),
        lambda items: queue.produce_many(tuple(items)),
        lambda items: queue.produce_many(iter(items)),
    ]


@pytest.mark.parametrize("way", range(4))
def test_items_of_subclasses_go_to_the_nearest_class_that_takes_them(make_queue, way):
    queue = make_queue(partitions=PartitionPolicy.adaptive())
    events, clicks, touches = Recorder(), Recorder(), Recorder()
    queue.add_handler(Event, events, subclasses=True)
    queue.add_handler(Click, clicks, subclasses=True)
    queue.add_handler(Touch, touches)
    items = [Event(), Click(), DoubleClick(), Touch(), DoubleClick()]
    assert ways(queue)[way](items)
    assert queue.shutdown(WAIT_S) == 0
    assert events.items == [items[0]]
    assert clicks.items == [items[1], items[2], items[4]]
    assert touches.items == [items[3]]
    assert queue.stats().handlers()[Click].consumed == 3
    assert_conserved(queue.stats())


def test_handler_without_subclasses_leaves_them_to_a_base_class(make_queue):
    queue = make_queue()
    events, clicks = Recorder(), Recorder()
    queue.add_handler(Event, events, subclasses=True)
    queue.add_handler(Click, clicks)
    item = DoubleClick()
    queue.produce(item)
    assert queue.shutdown(WAIT_S) == 0
    assert (events.items, clicks.items) == ([item], [])


def test_answer_of_a_class_changes_when_handlers_come_and_go(make_queue):
    queue = make_queue()
    events, clicks, doubles = Recorder(), Recorder(), Recorder()

    def lands_in():
        item = DoubleClick()
        queue.produce(item)
        assert queue.flush(WAIT_S)
        found = [handler for handler in (events, clicks, doubles) if item in handler.items]
        return found[0] if found else None

    assert lands_in() is None
    queue.add_handler(Event, events, subclasses=True)
    assert lands_in() is events
    queue.add_handler(Click, clicks, subclasses=True)
    assert lands_in() is clicks
    queue.add_handler(DoubleClick, doubles)
    assert lands_in() is doubles
    assert queue.remove_handler(DoubleClick)
    assert lands_in() is clicks
    queue.add_handler(Click, clicks, replace=True)
    assert lands_in() is events
    assert queue.remove_handler(Event)
    assert lands_in() is None
    assert queue.stats().unhandled == 2


def test_class_that_takes_the_address_of_another_is_asked_for_anew(make_queue):
    """The cache holds no class, so that an address may come back."""
    queue = make_queue()
    numbers, texts = Recorder(), Recorder()
    queue.add_handler(int, numbers, subclasses=True)
    queue.add_handler(str, texts, subclasses=True)
    wanted = {int: 0, str: 0}
    gc.freeze()  # what earlier tests have left would be searched in each round
    for round_ in range(100):
        base = int if round_ % 2 else str
        item_type = type("Made", (base,), {})
        queue.produce(item_type("7"))
        wanted[base] += 1
        assert queue.flush(WAIT_S)
        kept = weakref.ref(item_type)
        numbers.batches.clear()
        texts.batches.clear()
        del item_type
        gc.collect()
        assert kept() is None, "the cache keeps the class alive"
    assert queue.shutdown(WAIT_S) == 0
    handlers = queue.stats().handlers()
    assert {base: handlers[base].consumed for base in wanted} == wanted


def test_order_of_items_of_one_handler_is_kept_across_classes(make_queue):
    queue = make_queue(threads=2, partitions=4)
    seen = []
    classes = [type(f"Number{index}", (int,), {}) for index in range(10)]
    queue.add_handler(int, seen.extend, subclasses=True)
    assert queue.produce_many([classes[i % 10](i) for i in range(20_000)]) == 20_000
    assert queue.shutdown(WAIT_S) == 0
    assert seen == list(range(20_000))


def test_hot_base_class_is_spread_over_partitions(make_queue):
    made = []

    def factory():
        made.append(Recorder())
        return made[-1]

    queue = make_queue(threads=2, partitions=4)
    queue.add_handler_factory(Event, factory, partitions=3, subclasses=True)
    queue.produce_many([Click() for _ in range(3_000)])
    assert queue.shutdown(WAIT_S) == 0
    assert sum(len(handler.items) for handler in made) == 3_000
    assert all(handler.items for handler in made)


def test_items_that_change_their_list_meanwhile_are_not_lost(make_queue):
    """`produce_many` enqueues the list as it was when it was called."""
    queue = make_queue(buffer_size=10)
    items = [Click() for _ in range(5_000)]
    wanted, entered = list(items), threading.Event()

    def clear(batch):
        entered.set()
        items.clear()
        seen.extend(batch)

    seen = []
    queue.add_handler(Event, clear, subclasses=True)
    assert queue.produce_many(items) == 5_000
    assert queue.shutdown(WAIT_S) == 0
    assert seen == wanted


@pytest.mark.parametrize("way", range(4))
def test_default_handler_gets_items_of_types_without_a_handler(make_queue, way):
    others, numbers = Recorder(), Recorder()
    queue = make_queue(default_handler=others, partitions=PartitionPolicy.adaptive())
    queue.add_handler(int, numbers)
    assert ways(queue)[way]([1, "a", 2.5, True])
    assert queue.shutdown(WAIT_S) == 0
    assert numbers.items == [1]
    assert others.items == ["a", 2.5, True]
    assert (others.closed, numbers.closed) == (1, 1)
    stats = queue.stats()
    assert (stats.consumed, stats.unhandled) == (4, 0)
    assert stats.handlers()["default"].consumed == 3
    assert_conserved(stats)


@pytest.mark.parametrize(
    "selector",
    [None, PartitionSelector.round_robin(), PartitionSelector.by_key(lambda item: str(item))],
)
def test_default_handler_works_with_every_selector(make_queue, selector):
    others = Recorder()
    queue = make_queue(default_handler=others, selector=selector, threads=2, partitions=3)
    queue.produce_many(list(range(300)))
    assert queue.shutdown(WAIT_S) == 0
    assert sorted(others.items) == list(range(300))


def test_base_class_that_takes_subclasses_comes_before_the_default(make_queue):
    others, events = Recorder(), Recorder()
    queue = make_queue(default_handler=others)
    queue.add_handler(Event, events, subclasses=True)
    click = Click()
    queue.produce_many([click, "text"])
    assert queue.flush(WAIT_S)
    assert (events.items, others.items) == ([click], ["text"])
    assert queue.remove_handler(Event)
    other = Click()
    queue.produce(other)
    assert queue.shutdown(WAIT_S) == 0
    assert others.items == ["text", other]


def test_default_handler_is_retried_and_has_dead_letters(make_queue):
    letters, tries = [], []

    def fail(batch):
        tries.append(list(batch))
        raise ValueError("bad")

    queue = make_queue(
        default_handler=fail,
        retry=RetryPolicy(attempts=2, backoff_ms=0),
        dead_letter=letters.extend,
        error_handler=lambda *_: None,
    )
    queue.produce("text")
    assert queue.shutdown(WAIT_S) == 0
    assert tries == [["text"], ["text"]]
    assert [(letter.item, letter.item_type, letter.attempts) for letter in letters] == [
        ("text", str, 2)
    ]
    assert queue.stats().dead_lettered == 1


def test_rows_of_tags_without_a_handler_go_to_the_default_handler(make_queue):
    pa = pytest.importorskip("pyarrow")
    others, mine = Recorder(), Recorder()
    queue = make_queue(default_handler=others)
    queue.add_handler("a", mine)
    data = pa.record_batch({"tag": ["a", "b", "c", "a"], "n": [1, 2, 3, 4]})
    assert queue.produce_arrow(data, type_column="tag") == 4
    assert queue.shutdown(WAIT_S) == 0
    rows = [row for batch in others.items for row in batch.to_pylist()]
    assert rows == [{"tag": "b", "n": 2}, {"tag": "c", "n": 3}]
    assert (queue.stats().unhandled, queue.stats().consumed) == (0, 4)
    assert queue.stats().handlers()["default rows"].consumed == 2


def test_default_handler_may_be_a_coroutine_function_on_a_loop():
    async def main():
        seen = []

        async def others(batch):
            seen.extend(batch)

        async with AsyncBatchQueue("queue", config(default_handler=others)) as queue:
            queue.add_handler(Event, seen.extend, subclasses=True)
            click = Click()
            await queue.produce(click)
            await queue.produce_many([1, "a"])
            assert await queue.flush()
            assert queue.stats().consumed == 3
            assert set(map(type, seen)) == {Click, int, str}

    run(main)


@pytest.mark.parametrize("mode", ["consumer", "consumer_factory"])
def test_default_handler_beside_a_consumer_is_refused(mode):
    with pytest.raises(ConfigError, match=f"default_handler is given beside a {mode}"):
        config(**{mode: Recorder() if mode == "consumer" else Recorder, "default_handler": print})


def test_default_handler_must_be_a_handler():
    with pytest.raises(ConfigError, match="an int cannot be a handler"):
        config(default_handler=3)

    async def others(batch):
        pass

    settings = config(default_handler=others)
    with pytest.raises(ConfigError, match=r"must run on an event loop.*use AsyncBatchQueue"):
        BatchQueue("queue", settings)


def test_tag_has_no_subclasses(make_queue):
    with pytest.raises(ConfigError, match=r"the tag 'rows' with subclasses=True, and a tag has"):
        make_queue().add_handler("rows", print, subclasses=True)


@pytest.mark.parametrize(
    ("add", "item", "hint"),
    [
        (
            lambda queue: queue.add_handler(Event, print),
            Click(),
            r"subclass of .*Event, which has one.*subclasses=True",
        ),
        (
            lambda queue: queue.add_handler("Event", print),
            Event(),
            r'the tag "Event" has one, and a tag is for rows of produce_arrow: register the class',
        ),
        (
            lambda queue: queue.add_handler("rows", print),
            Event(),
            r"all handlers are those of tags, and a tag is for rows of produce_arrow",
        ),
    ],
)
def test_line_about_unhandled_items_names_the_mistake(make_queue, caplog, add, item, hint):
    queue = make_queue()
    add(queue)
    queue.produce(item)
    assert queue.shutdown(WAIT_S) == 0
    assert len(caplog.records) == 1
    assert re.search(hint, caplog.records[0].message)
