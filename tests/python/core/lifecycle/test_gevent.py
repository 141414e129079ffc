"""gevent's monkey patching: what handlers may use, and waits that leave the greenlets running."""

import pytest

from core_support.scripts import SCRIPT_HEADER, run_script
from pages import ROOT, blocks

pytest.importorskip("gevent")

PATCHED = (
    "from gevent import monkey; monkey.patch_all()\n"
    + SCRIPT_HEADER
    + """
import gevent
pool = gevent.get_hub().threadpool
"""
)


def run(code, header=PATCHED):
    exit_code, out, err = run_script(code, header=header)
    assert exit_code == 0, err
    return out, err


def test_waits_in_the_thread_pool_leave_greenlets_running():
    """Each wait ends only when another greenlet has run."""
    out, _ = run("""
gates = [threading.Lock() for _ in range(5)]
for gate in gates:
    gate.acquire()

def take(batch):
    with gates[batch[0]]:
        return batch

def waiting(gate, call, *args):
    gevent.spawn(gates[gate].release)
    return pool.apply(call, args)

queue = BatchQueue("queue", config(buffer_size=1, max_batch_items=1))
queue.add_handler(int, take)
say(queue.produce(0))
eventually(lambda: queue.stats().in_flight == 1)
say(queue.produce(1))
say(waiting(0, queue.produce, 2))
gevent.spawn(gates[1].release)
say(waiting(2, queue.flush))
future = queue.submit(3)
say(waiting(3, future.result))
say(queue.produce(4))
say(waiting(4, queue.shutdown))
""")
    assert out == ["True", "True", "True", "True", "3", "True", "0"]


def test_greenlets_wait_for_results_without_a_thread():
    out, _ = run("""
from gevent.event import Event

gate = threading.Lock()
gate.acquire()

def take(batch):
    with gate:
        return [item + 1 for item in batch]

def result_of(future):
    done, waker = Event(), gevent.get_hub().loop.async_()
    waker.start(done.set)
    future.add_done_callback(lambda _: waker.send())
    done.wait()
    waker.close()
    return future.result()

queue = BatchQueue("queue", config())
queue.add_handler(int, take)
waiting = [gevent.spawn(result_of, queue.submit(number)) for number in range(100)]
gevent.sleep(0)
say(any(greenlet.ready() for greenlet in waiting))
gate.release()
gevent.joinall(waiting)
say([greenlet.value for greenlet in waiting] == list(range(1, 101)))
say(all(result_of(queue.submit(number)) == number + 1 for number in range(1_000)))
""")
    assert out == ["False", "True", "True"]


def test_handlers_may_use_what_gevent_has_patched():
    """A lock that a greenlet of the main thread holds, sleep, sockets, greenlets, and locals."""
    out, err = run("""
import socket

lock, entered = threading.Lock(), threading.Lock()
local = threading.local()
local.value = "of the main thread"
server = socket.create_server(("127.0.0.1", 0))

def echo():
    connection, _ = server.accept()
    connection.sendall(connection.recv(9))
    connection.close()

def take(batch):
    entered.release()
    with lock:
        say(threading.current_thread().name)
    say(getattr(local, "value", "another local"))
    local.value = batch
    time.sleep(0.001)
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"echo")
        say(connection.recv(9).decode())
    say(gevent.spawn(lambda: "greenlet").get(timeout=60))

queue = BatchQueue("queue", config())
queue.add_handler(int, take)
gevent.spawn(echo)
lock.acquire()
entered.acquire()
queue.produce(1)
with entered:
    lock.release()
say(pool.apply(queue.flush, (60,)), queue.stats().failed, local.value)
""")
    assert out == [
        "batchqueue-queue-0",
        "another local",
        "echo",
        "greenlet",
        "True 0 of the main thread",
    ]
    assert "Traceback" not in err


WARNING = "gevent has patched threading, but queues wait natively"


@pytest.mark.parametrize("is_patched", [True, False])
def test_warning_names_the_remedy_once(is_patched):
    header = PATCHED if is_patched else SCRIPT_HEADER + "import gevent.monkey\n"
    _, err = run(
        """
for name in "ab":
    BatchQueue(name, config()).shutdown()
""",
        header,
    )
    assert err.count(WARNING) == is_patched
    assert err.count("gevent.get_hub().threadpool.apply(queue.flush)") == is_patched


def test_exit_delivers_what_was_accepted():
    out, _ = run("""
queue = BatchQueue("queue", config(max_batch_items=1_000, max_delay_ms=60_000))
queue.add_handler(int, lambda batch: say(batch))
gevent.joinall([gevent.spawn(queue.produce, 1) for _ in range(3)])
""")
    assert out == ["[1, 1, 1]"]


def test_example_of_the_guide_prints_what_it_shows():
    """It patches first, so that it is not part of the page's program."""
    page = (ROOT / "docs" / "guide" / "hosts.md").read_text()
    (example,) = [block for block in blocks(page, "py") if "gevent" in block.text]
    out, _ = run(example.text, header="")
    assert out == example.output.splitlines()
