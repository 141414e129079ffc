"""P9: the exit delivers what was accepted, keeps exit codes, and survives handlers that hang."""

from collections import Counter

import pytest

from core_support.scripts import run_script

pytestmark = pytest.mark.matrix(2, name="ends of the interpreter")

SLOW_END = """
class SlowEnd:
    # Makes the interpreter's last phase long enough for a drain thread to re-enter it.
    def __init__(self):
        self.sleep = time.sleep

    def __del__(self):
        self.sleep(0.5)

sys.modules["slow_end"] = SlowEnd()
"""


def test_exit_delivers_what_every_queue_accepted():
    """Registered, unregistered and dropped queues."""
    code, out, err = run_script(
        """
        for name, make in (("registered", BatchQueueManager.create), ("plain", BatchQueue)):
            kept = make(name, config(min_idle_ms=60_000))
            kept.add_handler(int, lambda batch, name=name: say(name, batch))
            kept.produce_many([1, 2, 3])
            globals()[name] = kept
        dropped = BatchQueue("dropped", config())
        dropped.add_handler(int, lambda batch: (time.sleep(0.2), say("dropped", batch)))
        dropped.produce(4)
        del dropped
        """
    )
    assert (code, err) == (0, "")
    assert sorted(out) == ["dropped [4]", "plain [1, 2, 3]", "registered [1, 2, 3]"]


def test_a_handler_may_use_pyarrow_for_the_first_time_at_the_exit():
    """It imports `concurrent.futures.thread`, which cannot be imported any more then."""
    code, out, err = run_script(
        """
        import pyarrow as pa

        queue = BatchQueue("queue", config(threads=1))
        queue.add_handler(int, lambda batch: say(pa.array(batch).to_pandas().sum()))
        held = threading.Event()
        queue.add_handler(str, lambda batch: held.wait())
        queue.produce("held")
        queue.produce(1)
        atexit.register(held.set)
        """
    )
    assert (code, out, err) == (0, ["1"], "")


def test_exit_delivers_to_interpreter_free_handlers():
    """What they emit is then handled by Python code."""
    code, out, err = run_script(
        """
        import pyarrow as pa
        from batchqueue.aggregation import Aggregation, Aggregator, Count

        def next_worker(partials):
            for row in partials.to_pylist():
                say(row["key"], *row["n"].values())

        data = pa.table({"tag": ["a", "b"] * 50_000, "key": [1, 2, 3, 4] * 25_000})
        description = Aggregation(keys=["key"], measures={"n": Count()})
        queue = BatchQueue("queue", config(threads=2, buffer_size=10_000_000))
        for tag in "ab":
            queue.add_handler(tag, Aggregator(description, next_worker))
        for _ in range(50):
            queue.produce_arrow(data, type_column="tag")
        """
    )
    assert (code, err) == (0, "")
    counts = Counter()
    for line in out:
        key, count = map(int, line.split())
        counts[key] += count
    assert counts == dict.fromkeys((1, 2, 3, 4), 50 * 25_000)


def test_exit_closes_the_last_created_queue_first():
    code, out, err = run_script(
        """
        class Handler:
            def __init__(self, name, next_queue=None):
                self.name, self.next_queue = name, next_queue
            def consume(self, batch):
                say(self.name, batch)
            def on_close(self):
                say(self.name, "closed")
                if self.next_queue:
                    say(self.next_queue.produce(self.name))
        store = BatchQueueManager.create("store", config())
        l2 = BatchQueue("l2", config())
        l1 = BatchQueueManager.create("l1", config())
        store.add_handler(str, Handler("store"))
        l2.add_handler(str, Handler("l2", store))
        l1.add_handler(str, Handler("l1", l2))
        """
    )
    assert (code, err) == (0, "")
    # The next queue may handle what it got before the producer says that it was accepted.
    assert out.count("True") == 2
    events = [line for line in out if line != "True"]
    assert events == ["l1 closed", "l2 ['l1']", "l2 closed", "store ['l2']", "store closed"]


def test_exit_delivers_the_items_of_running_threads():
    code, out, err = run_script(
        """
        queue = BatchQueue("queue", config(buffer_size=2))
        count = 0
        class Handler:
            def consume(self, batch):
                global count
                count += len(batch)
            def on_close(self):
                say(count)
        queue.add_handler(int, Handler())
        main_ended = threading.main_thread().join
        def late():
            main_ended()
            for number in range(500):
                assert queue.produce(number)
        threading.Thread(target=late).start()
        """
    )
    assert (code, err) == (0, "")
    assert out == ["500"]


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("", 0), ("sys.exit(5)", 5), ("sys.exit('text')", 1), ("raise ValueError('as planned')", 1)],
    ids=["end", "sys.exit", "sys.exit text", "exception"],
)
def test_exit_codes_are_kept(ending, expected):
    code, out, err = run_script(
        f"""
        queue = BatchQueue("queue", config(min_idle_ms=60_000))
        queue.add_handler(int, lambda batch: say(batch))
        queue.produce(1)
        {ending}
        """
    )
    assert code == expected
    assert out == ["[1]"]
    assert "panicked" not in err


HANGS = {
    "sleep": "lambda batch: time.sleep(1000)",
    "busy": "busy",
    "sleep that ends in the last phase": "lambda batch: time.sleep(0.6)",
    "lock": "lambda batch: lock.acquire()",
    "raises in the last phase": "raise_late",
    "produces in the last phase": "produce_late",
}


@pytest.mark.parametrize("handler", HANGS.values(), ids=HANGS)
def test_hanging_handler_does_not_stop_the_exit(handler):
    code, out, err = run_script(
        f"""{SLOW_END}
lock = threading.Lock()
lock.acquire()
entered = threading.Event()

def busy(batch):
    while True:
        pass

def raise_late(batch):
    time.sleep(0.6)
    raise ValueError("late")

def produce_late(batch):
    while True:
        queue.produce(1)

body = {handler}

def consume(batch):
    entered.set()
    body(batch)

queue = BatchQueue("queue", config(shutdown_timeout=0.3, buffer_size=3))
queue.add_handler(int, consume)
queue.produce(1)
entered.wait(30)
say("ends")
"""
    )
    assert code == 0, err
    assert out == ["ends"]
    assert "FATAL" not in err
    assert "panicked" not in err


@pytest.mark.parametrize(
    "place", ["on_idle", "on_close", "on_error", "error_handler", "__del__", "__str__", "logging"]
)
@pytest.mark.parametrize("body", ["while True: pass", "time.sleep(0.6)"], ids=["busy", "sleep"])
def test_hang_anywhere_in_a_drain_thread_does_not_stop_the_exit(place, body):
    if place == "logging" and body.startswith("while"):
        body = "while not stop.is_set(): pass"
    code, out, err = run_script(
        f"""{SLOW_END}
import logging
entered, stop = threading.Event(), threading.Event()

def hang(*_):
    entered.set()
    {body}

class Handler:
    def consume(self, batch):
        if {place!r} in ("on_error", "error_handler", "__str__"):
            raise Failure

class Failure(Exception):
    pass

class Item:
    pass

place = {place!r}
settings = dict(shutdown_timeout=0.3)
if place in ("on_idle", "on_close", "on_error"):
    setattr(Handler, place, hang)
elif place == "error_handler":
    settings["error_handler"] = hang
elif place == "__del__":
    Item.__del__ = hang
elif place == "__str__":
    Failure.__str__ = lambda error: hang() or "text"
else:
    class Log(logging.Handler):
        def handle(self, record):
            hang()
    logging.getLogger("batchqueue").addHandler(Log())
queue = BatchQueue("queue", config(**settings))
if place != "logging":
    queue.add_handler(Item, Handler())
if place != "on_close":
    queue.produce(Item())
    assert entered.wait(30)
say("ends")
# Otherwise the main thread would hang in the user's logging handler, too.
atexit.register(stop.set)
"""
    )
    assert code == 0, err
    assert out == ["ends"]
    assert "FATAL" not in err
    assert "panicked" not in err


def test_stage_that_waits_for_a_hanging_stage_does_not_stop_the_exit():
    for order in ("first, second", "second, first"):
        code, out, err = run_script(
            f"""{SLOW_END}
queues = {{}}
for name in {order!r}.split(", "):
    size = 1 if name == "second" else 9
    queues[name] = BatchQueue(name, config(buffer_size=size, shutdown_timeout=0.3))
first, second = queues["first"], queues["second"]
second.add_handler(int, lambda batch: time.sleep(1000))
first.add_handler(int, lambda batch: [second.produce(item) for item in batch])
first.produce_many([1] * 5)
eventually(lambda: second.stats().attempts == 3)
say("ends")
"""
        )
        assert code == 0, err
        assert out == ["ends"]
        assert "FATAL" not in err


@pytest.mark.parametrize("call", ["queue.produce(1)", "queue.flush()", "queue.shutdown()"])
def test_waiting_daemon_thread_does_not_stop_the_exit(call):
    code, out, err = run_script(
        f"""{SLOW_END}
queue = BatchQueue("queue", config(buffer_size=1, shutdown_timeout=0.3))
queue.add_handler(int, lambda batch: time.sleep(1000))
queue.produce(1)
eventually(lambda: queue.stats().in_flight == 1)

def wait():
    while True:
        {call}

threading.Thread(target=wait, daemon=True).start()
say("ends")
"""
    )
    assert code == 0, err
    assert out == ["ends"]
    assert "FATAL" not in err


def test_shutdown_that_timed_out_is_not_waited_for_again():
    code, out, err = run_script(
        """
        queue = BatchQueue("queue", config(shutdown_timeout=1000))
        queue.add_handler(int, lambda batch: time.sleep(1000))
        queue.produce(1)
        eventually(lambda: queue.stats().in_flight == 1)
        say(queue.shutdown(0.05))
        """
    )
    assert code == 0, err
    assert out == ["1"]


def test_exit_of_an_idle_queue_is_clean():
    code, out, err = run_script("""
        settings = config(threads=2, min_idle_ms=0)
        queues = [BatchQueue(f"queue{index}", settings) for index in range(20)]
        say("ends")
    """)
    assert (code, out, err) == (0, ["ends"], "")


def test_item_that_holds_its_queue_does_no_harm_at_exit():
    code, out, err = run_script(
        """
        class Item:
            pass
        queue = BatchQueue("queue", config(min_idle_ms=60_000))
        item = Item()
        item.queue, queue_of = queue, queue
        queue.add_handler(Item, lambda batch: say(len(batch)))
        queue.produce(item)
        del item, queue, queue_of
        """
    )
    assert (code, out, err) == (0, ["1"], "")


def test_unhandled_item_with_a_running_del_does_not_stop_the_exit():
    code, out, err = run_script(
        """
    class SlowEnd:
        def __init__(self):
            self.sleep = time.sleep
        def __del__(self):
            self.sleep(0.5)
    sys.modules["slow_end"] = SlowEnd()  # so that the thread re-enters during interpreter exit
    class Item:
        def __del__(self):
            time.sleep(0.6)
    queue = BatchQueue("queue", config(shutdown_timeout=0.2))
    queue.produce(Item())
    eventually(lambda: queue.stats().unhandled == 1)
    say("ends")
    """
    )
    assert (code, out) == (0, ["ends"]), err


def test_queue_that_starts_while_the_exit_begins_is_refused_and_closed():
    """The exit begins after the first check for it, while the consumer's name is read."""
    code, out, err = run_script(
        """
        from batchqueue import _core
        class Consumer:
            def __getattr__(self, name):
                if name == "__qualname__":
                    _core.close_all()
                raise AttributeError(name)
            def consume(self, batch):
                pass
            def on_close(self):
                say("closed")
        try:
            BatchQueue("late", config(consumer=Consumer()))
        except QueueClosedError as error:
            say(error)
        """
    )
    assert (code, err) == (0, "")
    assert out[0] == "closed"
    assert out[1].startswith('queue "late" cannot start while the interpreter exits')
