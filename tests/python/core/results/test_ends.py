"""No caller waits for a result that never comes: refusals, shutdowns, forks, exits."""

import concurrent.futures
import threading

import pytest

from batchqueue import (
    BufferStrategy,
    ConfigError,
    ProduceTimeoutError,
    QueueClosedError,
    ReentrantProduceError,
)
from core_support.handlers import Held
from core_support.queues import assert_conserved
from core_support.scripts import run_script
from core_support.waits import WAIT_S, eventually


class Echo(Held):
    def consume(self, batch):
        super().consume(batch)
        return batch


def full_queue(make_queue, **settings):
    """A queue whose handler is held, with a full partition behind it."""
    handler = Echo()
    queue = make_queue(buffer_size=2, **settings)
    queue.add_handler(int, handler)
    handler.hold(queue, 0)
    futures = [queue.submit(1), queue.submit(2)]
    return queue, handler, futures


def test_a_closed_queue_refuses_in_the_future(make_queue):
    queue = make_queue("orders")
    queue.shutdown()
    future = queue.submit(1)
    assert future.done()
    with pytest.raises(QueueClosedError, match=r"queue orders is shut down .*make a new queue"):
        future.result()
    assert (queue.stats().attempts, queue.stats().refused) == (1, 1)


def test_a_full_partition_refuses_in_the_future_if_possible(make_queue):
    queue, handler, futures = full_queue(make_queue, strategy=BufferStrategy.IF_POSSIBLE)
    future = queue.submit(3)
    assert future.done()
    assert isinstance(future.exception(), ProduceTimeoutError)
    assert future.exception().accepted == 0
    assert "partition is full: raise buffer_size" in str(future.exception())
    assert "BufferStrategy.BLOCKING" in str(future.exception())
    handler.released.set()
    assert [future.result(WAIT_S) for future in futures] == [1, 2]
    queue.flush(WAIT_S)
    assert queue.stats().refused == 1
    assert_conserved(queue.stats())


def test_a_wait_for_room_that_runs_out_of_time_is_in_the_future(make_queue):
    queue, handler, _ = full_queue(make_queue)
    assert isinstance(queue.submit(3, timeout=0.01).exception(0), ProduceTimeoutError)
    with pytest.raises(ConfigError, match="timeout is -1"):
        queue.submit(3, timeout=-1)
    handler.released.set()


def test_a_submit_waits_for_room(make_queue):
    queue, handler, _ = full_queue(make_queue)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(queue.submit, 3)
        handler.released.set()
        assert waiting.result(WAIT_S).result(WAIT_S) == 3


def test_a_handler_that_would_wait_for_itself_finds_the_error_in_the_future(make_queue):
    queue = make_queue(buffer_size=1)
    inner = []

    def consume(batch):
        inner.extend(queue.submit(number) for number in range(2))
        return batch

    queue.add_handler(float, consume)
    queue.add_handler(int, lambda batch: batch)
    queue.submit(0.5).result(WAIT_S)
    assert [type(future.exception(WAIT_S)) for future in inner][1] is ReentrantProduceError


def test_a_shutdown_delivers_all_results(make_queue):
    queue, handler, futures = full_queue(make_queue)
    handler.released.set()
    assert queue.shutdown() == 0
    assert [future.result(0) for future in futures] == [1, 2]


def test_a_shutdown_that_runs_out_of_time_ends_all_futures_immediately(make_queue):
    handler = Echo()
    queue = make_queue(threads=2, partitions=2)
    queue.add_handler(int, handler)
    futures = [queue.submit(number) for number in range(3)]
    assert handler.entered.wait(WAIT_S)
    called = []
    futures[2].add_done_callback(called.append)
    assert queue.shutdown(0.01) == 3
    # The handler is still inside its call.
    for future in futures:
        with pytest.raises(QueueClosedError, match='queue "queue": the shutdown ran out of time'):
            future.result(0)
    assert called == [futures[2]]
    handler.released.set()
    eventually(lambda: handler.batches)
    assert isinstance(futures[0].exception(0), QueueClosedError)


def test_a_thread_that_waits_is_woken_by_a_shutdown_that_runs_out_of_time(make_queue):
    handler = Echo()
    queue = make_queue()
    queue.add_handler(int, handler)
    future = queue.submit(1)
    assert handler.entered.wait(WAIT_S)
    errors = []
    threads = [
        threading.Thread(target=lambda: errors.append(type(future.exception()))),
        threading.Thread(target=lambda: errors.append(concurrent.futures.wait([future]).done)),
    ]
    for thread in threads:
        thread.start()
    queue.shutdown(0.01)
    for thread in threads:
        thread.join(WAIT_S)
    assert len(errors) == 2
    handler.released.set()


def test_a_forked_child_finds_an_error_in_the_futures_of_its_parent():
    code, out, err = run_script("""
        entered, released = threading.Event(), threading.Event()
        def consume(batch):
            entered.set()
            released.wait(30)
            return batch
        queue = BatchQueue("queue", config(threads=2))
        queue.add_handler(int, consume)
        queue.add_handler(str, lambda batch: batch)
        done = queue.submit("done")
        done.result(30)
        futures = [queue.submit(number) for number in range(3)]
        called = []
        futures[0].add_done_callback(called.append)
        entered.wait(30)
        pid = os.fork()
        if pid == 0:
            import concurrent.futures
            say(done.result())
            waited = concurrent.futures.wait(futures[:2])
            say(len(waited.done), len(waited.not_done))
            say(*(type(future.exception()).__name__ for future in futures))
            try:
                queue.submit(1)
            except QueueForkedError as error:
                say(type(error).__name__)
            fresh = BatchQueue("fresh", config())
            fresh.add_handler(int, lambda batch: [item + 1 for item in batch])
            say(fresh.submit(1).result(30), called)
            fresh.shutdown()
            del futures, done, queue
            gc.collect()
            os._exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        released.set()
        say([future.result(30) for future in futures])
    """)
    assert (code, err) == (0, "")
    assert out == [
        "done",
        "2 0",
        "QueueForkedError QueueForkedError QueueForkedError",
        "QueueForkedError",
        "2 []",
        "0",
        "[0, 1, 2]",
    ]


def test_the_exit_of_the_interpreter_delivers_results_and_ends_what_it_abandons():
    code, out, _ = run_script("""
        queue = BatchQueue("quick", config())
        queue.add_handler(int, lambda batch: batch)
        hung = BatchQueue("hung", config(shutdown_timeout=0.1))
        hung.add_handler(int, lambda batch: threading.Event().wait())
        for made in (queue, hung):
            made.submit(1).add_done_callback(
                lambda future: say(type(future.exception()).__name__)
            )
    """)
    assert code == 0
    assert sorted(out) == ["NoneType", "QueueClosedError"]


def test_an_interrupt_ends_a_wait_for_a_result():
    code, out, _ = run_script("""
        entered, released = threading.Event(), threading.Event()
        def consume(batch):
            entered.set()
            released.wait(30)
            return batch
        queue = BatchQueue("queue", config())
        queue.add_handler(int, consume)
        future = queue.submit(1)
        entered.wait(30)
        try:
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
            future.result()
        except KeyboardInterrupt:
            say("interrupted")
        released.set()
        say(future.result(30))
    """)
    assert (code, out) == (0, ["interrupted", "1"])
