"""P9: the exit ends queues in the order of creation: what was there before a queue outlives it."""

import pytest

from core_support.scripts import SCRIPT_HEADER, run_script

pytestmark = pytest.mark.matrix(2, name="ends of the interpreter")

PREPARE = """
import tempfile, weakref

exit_has_begun = threading.Event()

class Connection:
    # Closed through atexit, like those of many clients.
    def __init__(self, name="connection", close_at_exit=atexit.register):
        self.name, self.is_open, self.rows = name, True, 0
        close_at_exit(self.close)

    def close(self):
        self.is_open = False
        say(self.name, "closes after", self.rows)

    def insert(self, batch):
        # Slow enough that another order shows.
        exit_has_begun.wait(30)
        for row in batch:
            time.sleep(0.001)
            if not self.is_open:
                raise ValueError(f"{self.name} is closed")
            self.rows += 1

def fill(queue, handler):
    queue.add_handler(int, handler)
    queue.produce_many(range(100))

class Owner:
    pass

owner = Owner()
"""

BEGIN = """
atexit.register(exit_has_begun.set)
"""


def run(code, end=BEGIN, header=SCRIPT_HEADER):
    """Runs a script whose handlers begin when the exit begins."""
    exit_code, out, err = run_script(code + end, header=header + PREPARE)
    assert (exit_code, err) == (0, "")
    return out


def test_connection_that_was_opened_before_a_queue_is_closed_after_its_delivery():
    out = run("""
connection = Connection()
queue = BatchQueue("queue", config())
fill(queue, connection.insert)
""")
    assert out == ["connection closes after 100"]


@pytest.mark.parametrize("earlier", [True, False], ids=["another finalizer", "the first one"])
def test_finalizers_that_were_made_before_a_queue_run_after_its_delivery(earlier):
    """Python runs all of them where the first one was made."""
    out = run(f"""
if {earlier}:
    weakref.finalize(owner, say, "first")
connection = Connection("early")
folder = tempfile.TemporaryDirectory()
finalized = Connection("finalized", lambda close: weakref.finalize(owner, close))
queue = BatchQueue("queue", config())

def insert(batch):
    connection.insert(batch)
    with open(os.path.join(folder.name, "rows"), "a") as file:
        file.write("rows")
    say("stored", finalized.is_open)

fill(queue, insert)
""")
    assert out.count("stored True") >= 1
    assert "stored False" not in out
    assert "early closes after 100" in out


def test_each_queue_ends_before_what_was_there_when_it_was_made():
    out = run("""
kept = []
for number in range(3):
    connection = Connection(f"connection {number}")
    kept.append(BatchQueue(f"queue {number}", config()))
    fill(kept[-1], connection.insert)
""")
    assert out == [f"connection {number} closes after 100" for number in (2, 1, 0)]


def test_queue_that_was_dropped_delivers_in_its_turn():
    out = run("""
connection = Connection()
fill(BatchQueue("queue", config()), connection.insert)
""")
    assert out == ["connection closes after 100"]


def test_queue_that_another_thread_makes_has_its_place_too():
    out = run("""
connection = Connection()

def work():
    fill(BatchQueue("queue", config()), connection.insert)

thread = threading.Thread(target=work)
thread.start()
thread.join()
""")
    assert out == ["connection closes after 100"]


def test_callback_between_two_queues_may_still_produce_into_the_older_one():
    code, out, err = run_script("""
older = BatchQueue("older", config())
older.add_handler(str, lambda batch: say("older", batch))

@atexit.register
def last_items():
    say("newer", newer.produce("too late"))
    say(older.produce("last"))

newer = BatchQueue("newer", config())
newer.add_handler(str, lambda batch: say("newer", batch))
newer.produce("first")
""")
    assert code == 0
    assert err == "queue newer: 1 item of str was refused, the queue is shut down\n"
    assert out[:2] == ["newer ['first']", "newer False"]
    # The handler may be faster than the producer says that it was accepted.
    assert sorted(out[2:]) == ["True", "older ['last']"]


def test_stages_of_a_pipeline_with_callbacks_between_them_deliver_all():
    out = run("""
queues = []
for number in range(3):
    connection = Connection(f"connection {number}")
    stage = BatchQueue(f"stage {number}", config(buffer_size=7))

    def handle(batch, following=tuple(queues[-1:]), connection=connection):
        connection.insert(batch)
        for queue in following:
            queue.produce_many(batch)

    stage.add_handler(int, handle)
    queues.append(stage)
producer = threading.Thread(target=lambda: queues[-1].produce_many(range(100)))
producer.start()
eventually(lambda: queues[-1].stats().attempts > 7)
exit_has_begun.set()
""")
    assert out == [f"connection {number} closes after 100" for number in (2, 1, 0)]


def test_queue_that_a_callback_makes_during_the_exit_delivers():
    out = run(
        """
early = BatchQueue("early", config())
connection = Connection()
oldest = BatchQueue("oldest", config())

@atexit.register
def last_work():
    exit_has_begun.set()
    global late
    late = BatchQueue("late", config())
    fill(late, connection.insert)
    say(late.flush(0))
""",
        end="",
    )
    assert out == ["False", "connection closes after 100"]


def test_queue_that_on_close_makes_during_the_exit_delivers():
    out = run("""
class Handler:
    def consume(self, batch):
        pass
    def on_close(self):
        late = BatchQueue("late", config())
        late.add_handler(str, lambda batch: say("late", batch))
        say(late.produce("last"))

early = BatchQueue("early", config())
early.add_handler(int, Handler())
""")
    assert sorted(out) == ["True", "late ['last']"]


def test_queue_that_is_made_after_the_last_one_has_ended_is_refused():
    out = run(
        """
from batchqueue import *
""",
        end="",
        header="""
import atexit

@atexit.register
def too_late():
    try:
        BatchQueue("late", config())
    except QueueClosedError as error:
        say(error)
"""
        + SCRIPT_HEADER,
    )
    assert len(out) == 1
    assert out[0].startswith('queue "late" cannot start while the interpreter exits')
    assert "earlier" in out[0], "the remedy"


def test_queues_that_come_and_go_leave_no_callbacks():
    out = run("""
class Count:
    # Each callback is compared with what is unregistered.
    def __init__(self):
        self.others = 0

    def __eq__(self, other):
        self.others += 1
        return False

def callbacks():
    count = Count()
    atexit.unregister(count)
    return count.others

connection = Connection()
kept = [BatchQueue("kept", config()), BatchQueue("kept too", config())]
before = callbacks()
for _ in range(2_000):
    with BatchQueue("passing", config(inline=True)):
        pass
say(callbacks() - before < 1_000)
for queue in kept:
    fill(queue, connection.insert)
""")
    assert out == ["True", "connection closes after 200"]


CHILD = """
import warnings
warnings.simplefilter("ignore")

def restarts(name):
    return BatchQueue(name, config(restart_after_fork=True))

def in_child(body):
    pid = os.fork()
    if pid == 0:
        body()
        atexit.register(exit_has_begun.set)
        sys.exit(0)
    say("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_new_queue_of_a_child_ends_before_what_was_there_in_the_child():
    out = run(
        CHILD
        + """
def body():
    connection = Connection()
    fill(BatchQueue("queue", config()), connection.insert)

parents = BatchQueue("parents", config())
in_child(body)
"""
    )
    assert out == ["connection closes after 100", "child 0"]


def test_restarted_queue_of_a_child_ends_before_what_the_child_opened_first():
    out = run(
        CHILD
        + """
def insert(batch):
    connection.insert(batch)

def body():
    global connection
    connection = Connection()
    queue.produce_many(range(100))

queue = restarts("queue")
queue.add_handler(int, insert)
in_child(body)
"""
    )
    assert out == ["connection closes after 100", "child 0"]


def test_restarted_stages_end_in_the_order_of_their_creation():
    """The one that was made last is used first, and the other restarts because of it."""
    out = run(
        CHILD
        + """
def pass_on(batch):
    accepted = store.produce("first")
    eventually(lambda: not source.running)
    for _ in range(99):
        # Slow enough that another order shows.
        time.sleep(0.001)
        accepted += store.produce("next")
    say(accepted)

def body():
    source.produce(1)
    eventually(lambda: store.stats().consumed == 1)

store = restarts("store")
store.add_handler(str, lambda batch: None)
source = restarts("source")
source.add_handler(int, pass_on)
in_child(body)
"""
    )
    assert out == ["100", "child 0"]
