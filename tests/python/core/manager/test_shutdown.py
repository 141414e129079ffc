"""The manager's shutdown: one queue or all, within one deadline, chains in the right order."""

import threading

import pytest

from batchqueue import (
    BatchQueueManager,
    ConfigError,
    RetryPolicy,
    ThreadPolicy,
)
from core_support.handlers import Held, Recorder
from core_support.queues import config
from core_support.scripts import run_script
from core_support.threads import in_background, join, run_threads
from core_support.waits import WAIT_S, eventually


def test_shutdown_delivers_and_frees_the_name(manager):
    queue = manager.create("orders", config(min_idle_ms=60_000))
    recorder = Recorder()
    queue.add_handler(int, recorder)
    queue.produce(1)
    assert manager.shutdown("orders", WAIT_S) == 0
    assert recorder.items == [1]
    assert not queue.running
    assert manager.names() == []
    assert manager.create("orders", config()) is not queue


def test_shutdown_returns_the_number_of_abandoned_items(manager):
    queue = manager.create("orders", config())
    handler = Held()
    queue.add_handler(int, handler)
    handler.hold(queue, 1)
    assert manager.shutdown("orders", timeout=0) == 1
    handler.released.set()


def test_shutdown_of_an_unknown_name_does_nothing(manager):
    assert manager.shutdown("unknown") == 0


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_invalid_time_out_changes_nothing(manager, timeout):
    queue = manager.create("orders", config())
    with pytest.raises(ConfigError, match="timeout"):
        manager.shutdown("orders", timeout)
    with pytest.raises(ConfigError, match="timeout"):
        manager.shutdown_all(timeout)
    assert manager.names() == ["orders"]
    assert queue.running


def test_name_of_a_queue_that_was_shut_down_directly_is_free(manager):
    with manager.create("orders", config()) as first:
        pass
    second = manager.create("orders", config())
    second.shutdown(WAIT_S)
    third = manager.create_if_absent("orders", config())
    assert third.running
    assert len({first, second, third}) == 3


def test_shutdown_all_ends_the_last_created_first(manager):
    order = []

    class Stage(Recorder):
        def __init__(self, name, following=None):
            super().__init__()
            self.name, self.following = name, following

        def on_close(self):
            order.append(self.name)
            if self.following:
                assert self.following.produce(sum(self.items))

    third = manager.create("third", config())
    second = manager.create("second", config())
    first = manager.create("first", config())
    last = Stage("third")
    third.add_handler(int, last)
    second.add_handler(int, Stage("second", third))
    first.add_handler(int, Stage("first", second))
    first.produce_many([1, 2, 3])
    assert manager.shutdown_all(WAIT_S) == {"first": 0, "second": 0, "third": 0}
    assert order == ["first", "second", "third"]
    assert last.items == [6], "what on_close emits is delivered"
    assert manager.names() == []


def test_shutdown_all_refuses_outside_threads_immediately(manager):
    """While the last stage works, the first refuses outside threads but not drain threads."""
    store = manager.create("store", config())
    stage = manager.create("stage", config())
    handler = Held()
    kept = Recorder()
    store.add_handler(int, kept)
    stage.add_handler(int, lambda batch: (handler.consume(batch), store.produce_many(batch)))
    handler.hold(stage, 1)
    closer, outcome = in_background(lambda: manager.shutdown_all(WAIT_S))
    eventually(lambda: not store.running, "the store refuses outside threads")
    assert store.produce(2) is False
    assert stage.produce(2) is False
    handler.released.set()
    join(closer)
    assert outcome == [{"store": 0, "stage": 0}]
    assert kept.items == [1]


def test_stage_behind_one_that_hangs_makes_its_last_attempt_in_time(manager):
    """Its own turn to shut down comes when the time is over."""
    day, tries = 86_400_000, []

    def down(batch):
        tries.append(list(batch))
        threading.Event().wait(1)  # so the last attempt begins two seconds before the end
        raise ConnectionError("down")

    retry = RetryPolicy(attempts=None, backoff_ms=day, max_backoff_ms=day)
    store = manager.create("store", config(retry=retry))
    store.add_handler(int, down)
    store.produce(1)
    eventually(lambda: store.stats().held == 1, "the first attempt")
    stage, hung = manager.create("stage", config()), Held()
    stage.add_handler(int, hung)
    hung.hold(stage, 1)
    assert manager.shutdown_all(6) == {"stage": 1, "store": 0}
    hung.released.set()
    assert tries == [[1]] * 2
    assert store.stats().failed == 1


def test_shutdown_all_has_one_deadline_for_all(manager):
    handlers = []
    for name in "abc":
        queue = manager.create(name, config())
        handler = Held()
        queue.add_handler(int, handler)
        handler.hold(queue, 1)
        handlers.append(handler)
    assert manager.shutdown_all(0.05) == {"a": 1, "b": 1, "c": 1}
    for handler in handlers:
        handler.released.set()


def test_shutdown_all_from_a_handler_ends(manager):
    outcomes = []
    other = manager.create("other", config())
    recorder = Recorder()
    other.add_handler(int, recorder)
    queue = manager.create("queue", config())
    queue.add_handler(int, lambda batch: outcomes.append(manager.shutdown_all(WAIT_S)))
    other.produce(1)
    queue.produce(1)
    eventually(lambda: outcomes, "shutdown_all returns to the handler")
    assert outcomes == [{"other": 0, "queue": 0}]
    assert recorder.items == [1]
    assert queue.shutdown(WAIT_S) == 0


def test_shutdown_all_without_queues_does_nothing(manager):
    assert manager.shutdown_all() == {}
    assert BatchQueueManager.shutdown_all(None) == {}


@pytest.mark.parametrize("registered_first", ["store", "stage"])
def test_chain_of_two_delivers_the_last_partials(manager, registered_first):
    """L1's on_close produces into L2, which still accepts from drain threads, in either order."""
    names = [registered_first, "stage" if registered_first == "store" else "store"]
    queues = {name: manager.create(name, config(min_idle_ms=60_000)) for name in names}
    kept, accepted = Recorder(), []

    class Partial(Recorder):
        def on_close(self):
            super().on_close()
            accepted.append(queues["store"].produce(sum(self.items)))

    queues["store"].add_handler(int, kept)
    partial = Partial()
    queues["stage"].add_handler(int, partial)
    queues["stage"].produce_many(range(1_000))
    assert manager.shutdown_all(WAIT_S) == {"store": 0, "stage": 0}
    assert (sum(partial.items), partial.closed, kept.closed) == (499_500, 1, 1)
    # The last created ends first: a stage that was made before its store finds the store closed,
    # and `produce` returns `False`.
    assert accepted == [registered_first == "store"]
    assert kept.items == ([499_500] if registered_first == "store" else [])


def test_chain_with_full_buffers_drains_completely(manager):
    """The store's buffer holds one item: during the shutdown the stage's thread waits for space."""
    store = manager.create("store", config(buffer_size=1))
    stage = manager.create("stage", config(min_idle_ms=60_000))
    kept = Recorder()
    store.add_handler(int, kept)
    stage.add_handler(int, store.produce_many)
    stage.produce_many(range(500))
    assert manager.shutdown_all(WAIT_S) == {"store": 0, "stage": 0}
    assert kept.items == list(range(500))


def test_handler_may_shut_queues_down_by_name(manager):
    returned, recorder = [], Recorder()
    other = manager.create("other", config(min_idle_ms=60_000))
    other.add_handler(int, recorder)
    queue = manager.create("queue", config())
    queue.add_handler(
        int,
        lambda batch: returned.append(
            (manager.shutdown("other", WAIT_S), manager.shutdown("queue"))
        ),
    )
    other.produce(1)
    queue.produce(1)
    eventually(lambda: returned, "both calls return")
    assert returned == [(0, 0)]
    assert recorder.items == [1]
    assert manager.names() == []
    assert queue.shutdown(WAIT_S) == 0
    assert queue.stats().consumed == 1


def test_two_concurrent_shutdowns_agree(manager):
    """Of one queue, and of all: each item is delivered once, and both calls return the same."""
    for _ in range(20):
        recorders = {}
        for name in ("a", "b", "c"):
            recorders[name] = Recorder()
            manager.create(name, config(min_idle_ms=60_000)).add_handler(int, recorders[name])
            manager.get(name).produce_many([1, 2, 3])
        results = []
        run_threads(
            lambda results=results: results.append(manager.shutdown_all(WAIT_S)),
            lambda results=results: results.append(manager.shutdown_all(WAIT_S)),
            lambda results=results: results.append({"b": manager.shutdown("b", WAIT_S)}),
        )
        assert all(abandoned == 0 for result in results for abandoned in result.values())
        assert sum(len(result) for result in results) >= 3
        assert manager.names() == []
        for recorder in recorders.values():
            eventually(lambda recorder=recorder: recorder.closed == 1, "the end of each queue")
            assert recorder.items == [1, 2, 3]


def test_time_out_reports_what_is_left(manager, caplog):
    """By queue, in the result and in the log; queues that do not hang are delivered."""
    held, kept = {}, Recorder()
    for name, count in (("a", 1), ("b", 4)):
        held[name] = Held()
        queue = manager.create(name, config())
        queue.add_handler(int, held[name])
        held[name].hold(queue, 0)
        queue.produce_many(range(1, count))
    manager.create("fine", config(min_idle_ms=60_000)).add_handler(int, kept)
    manager.get("fine").produce_many([1, 2])
    queues = [manager.get(name) for name in ("a", "b")]
    assert manager.shutdown_all(0.3) == {"a": 1, "b": 4, "fine": 0}
    assert kept.items == [1, 2]
    lines = [record.getMessage() for record in caplog.records if record.name == "batchqueue"]
    for name, count in (("a", 1), ("b", 4)):
        assert any(f"queue {name}" in line and f"abandoned {count} item" in line for line in lines)
        held[name].released.set()
    assert [queue.stats().abandoned for queue in queues] == [1, 4]


def test_shutdown_all_ends_pools_balancers_and_removed_handlers(manager):
    """Every thread that the queues started ends with it."""
    from batchqueue import BatchQueueConfig, DrainBalancer

    last = Recorder()
    pool = {"shared_scheduler": ("manager", ThreadPolicy.fixed(1)), "max_idle_ms": 60_000}
    manager.create("store", BatchQueueConfig(**pool)).add_handler(int, last)
    balanced = config(
        threads=2, partitions=4, balancer=DrainBalancer.load_weighted(), rebalance_interval_ms=1
    )
    manager.create("middle", balanced).add_handler(int, manager.get("store").produce_many)
    manager.create("first", BatchQueueConfig(**pool)).add_handler(
        int, manager.get("middle").produce_many
    )
    manager.get("first").produce_many(range(2_000))
    assert manager.shutdown_all(WAIT_S) == {"store": 0, "middle": 0, "first": 0}
    assert last.items == list(range(2_000))
    assert last.closed == 1


def test_batches_back_off_beyond_the_deadline_of_a_shutdown_that_ctrl_c_has_ended():
    exit_code, out, err = run_script("""
up, entered, released = threading.Event(), threading.Event(), threading.Event()

def store(batch):
    if not up.is_set():
        raise ConnectionError("down")

retry = RetryPolicy(attempts=None, backoff_ms=20, max_backoff_ms=20)
down = BatchQueueManager.create("down", config(retry=retry))
down.add_handler(int, store)
slow = BatchQueueManager.create("slow", config())
slow.add_handler(int, lambda batch: (entered.set(), released.wait(60)))
slow.produce(1)
down.produce(1)
entered.wait(30)

def interrupt():
    eventually(lambda: not slow.running)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
end = time.monotonic() + 1
try:
    BatchQueueManager.shutdown_all(1)
except KeyboardInterrupt:
    say("interrupted")
eventually(lambda: time.monotonic() > end + 0.1)
say(down.stats().failed, down.stats().total_used)
up.set()
released.set()
say(down.shutdown(30), down.stats().consumed)
""")
    assert (exit_code, out) == (0, ["interrupted", "0 1", "0 1"]), err
