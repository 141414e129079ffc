"""Celery's prefork pool: what tasks put into a queue is delivered when their process ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core_support.waits import HANG_S, eventually

pytest.importorskip("celery")

APP = """
import os
from pathlib import Path
from celery import Celery
from celery.signals import worker_process_shutdown
from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy

folder = Path(__file__).parent
app = Celery("service", broker="filesystem://", set_as_current=True)
app.conf.update(
    broker_transport_options={
        name: str(folder / "broker")
        for name in ("data_folder_in", "data_folder_out", "control_folder")
    },
    worker_prefetch_multiplier=1,
)

def make():
    made = BatchQueue(
        "orders",
        BatchQueueConfig(
            threads=ThreadPolicy.fixed(1),
            max_batch_items=1_000,
            max_delay_ms=60_000,
            restart_after_fork=True,
        ),
    )
    made.add_handler(int, store)
    return made

def store(batch):
    with open(folder / f"stored-{os.getpid()}", "a") as file:
        file.writelines(f"{item}\\n" for item in batch)

def accept(item):
    assert queue.produce(item)
    with open(folder / f"accepted-{os.getpid()}", "a") as file:
        file.write(f"{item}\\n")

queue = make() if os.environ["WHERE"] == "module" else None

@app.task(name="order")
def order(item):
    global queue
    if queue is None:
        queue = make()
    accept(item)

@worker_process_shutdown.connect
def last_item(pid, **kwargs):
    accept(1_000 + pid)
"""

TASKS = 20


class Service:
    """A folder with the application, and its worker."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "service.py").write_text(APP, encoding="utf-8")
        (folder / "broker").mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments, where="module"):
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "-A", "service", "worker"),
                    *("--loglevel", "INFO", "--concurrency", "2", "--pool", "prefork"),
                    *("--without-gossip", "--without-mingle", "--without-heartbeat", *arguments),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "WHERE": where},
                start_new_session=True,
            )

    def send(self, items):
        """Sends a task for each item: messages of the filesystem transport are files."""
        from celery import Celery

        broker = str(self.folder / "broker")
        options = {"data_folder_in": broker, "data_folder_out": broker, "control_folder": broker}
        with Celery("sender", broker="filesystem://", set_as_current=False) as sender:
            sender.conf.broker_transport_options = options
            for item in items:
                sender.send_task("order", (item,))

    def items(self, word):
        files = self.folder.glob(f"{word}-*")
        return sorted(int(line) for file in files for line in file.read_text().splitlines())

    def processes(self, word):
        return {int(file.name.rpartition("-")[2]) for file in self.folder.glob(f"{word}-*")}

    def wait_for(self, count):
        def accepted():
            assert self.process.poll() is None, self.log()
            return len([item for item in self.items("accepted") if item < 1_000]) >= count

        eventually(accepted, f"{count} tasks have run")

    def log(self):
        return (self.folder / "log").read_text(encoding="utf-8")

    def end(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(HANG_S)


@pytest.fixture
def service(tmp_path):
    service = Service(tmp_path)
    yield service
    service.end()


def assert_all_delivered(service, count):
    stored, accepted = service.items("stored"), service.items("accepted")
    assert stored == accepted, service.log()
    assert [item for item in stored if item < 1_000] == list(range(count))
    # Each process that ran tasks produced one more item when it ended.
    last = sorted(item - 1_000 for item in stored if item >= 1_000)
    assert set(last) >= service.processes("accepted")
    assert service.processes("stored") == service.processes("accepted")


@pytest.mark.matrix(3, name="hosts")
@pytest.mark.parametrize("where", ["module", "task"])
def test_warm_shutdown_delivers_what_tasks_produced(service, where):
    service.start(where=where)
    service.send(range(TASKS))
    service.wait_for(TASKS)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(HANG_S) == 0, service.log()
    assert_all_delivered(service, TASKS)


@pytest.mark.matrix(3, name="hosts")
def test_children_that_end_after_some_tasks_deliver_theirs(service):
    service.start("--max-tasks-per-child", "3")
    service.send(range(TASKS))
    service.wait_for(TASKS)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(HANG_S) == 0, service.log()
    assert_all_delivered(service, TASKS)
    assert len(service.processes("stored")) >= TASKS // 3
