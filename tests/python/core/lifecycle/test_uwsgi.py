"""Real uWSGI, whose master forks without Python's hooks.

A worker has the queue of the master only as a ruin: each call on it raises, or restarts it. What
the workers have accepted is stored when they end or are reloaded, also under load.
"""

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from core_support.scripts import run_script
from core_support.waits import HANG_S, eventually
from pages import ROOT, blocks

UWSGI = shutil.which("uwsgi", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

pytestmark = pytest.mark.skipif(UWSGI is None, reason="uWSGI is not installed")

APP = """
import os
import time
from pathlib import Path
from batchqueue import BatchQueue, BatchQueueConfig, QueueForkedError, ThreadPolicy

folder = Path(__file__).parent

def append(word, items):
    with open(folder / f"{word}-{os.getpid()}", "a") as file:
        file.writelines(f"{item}\\n" for item in items)

def make(name):
    made = BatchQueue(
        name,
        BatchQueueConfig(
            threads=ThreadPolicy.fixed(1),
            max_batch_items=100_000,
            max_delay_ms=600_000,
            restart_after_fork=os.environ["RESTART"] == "yes",
        ),
    )
    made.add_handler(str, lambda batch: append("stored", batch))
    return made

queue = make("orders")
# A thread that starts, and holds the interpreter at the fork, would hang the worker.
while not any(thread.cycles for thread in queue.stats().drain_threads):
    time.sleep(0.001)
fresh = None

def app(environ, start_response):
    global fresh
    item = environ["PATH_INFO"].strip("/")
    try:
        accepted = (fresh or queue).produce(item)
    except QueueForkedError as error:
        status, answer = "503 Service Unavailable", str(error)
        if item == "fresh":
            fresh = make("fresh")
            accepted = fresh.produce(item)
    else:
        status, answer = "200 OK" if accepted else "429 Full", str(os.getpid())
        append("accepted", [item])
    start_response(status, [("Content-Type", "text/plain"), ("Connection", "close")])
    return [answer.encode()]
"""

GRACEFUL = ("--hook-master-start", "unix_signal:15 gracefully_kill_them_all")
"""A worker in the middle of a request ends it first: otherwise uWSGI skips the exit of Python."""

ACCEPTING = ("--hook-accepting", "print:accepting")
"""A worker says when it accepts requests. Before that, uWSGI loses the signal of a graceful end,
and then waits for the worker forever."""


class Server:
    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "service.py").write_text(APP, encoding="utf-8")
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options, restart=True):
        workers = ("--master", "-p", "2", "--wsgi-file", "service.py", "--callable", "app")
        self.run(*workers, *options, restart=restart)

    def run(self, *options, restart=True):
        # The socket is inherited, so that no other program gets its port meanwhile.
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
            self.port = listener.getsockname()[1]
            with (self.folder / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [
                        *(UWSGI, "--need-app", "--disable-logging", *ACCEPTING, *options),
                        *("--http-socket", f"fd://{listener.fileno()}"),
                    ],
                    cwd=self.folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(listener.fileno(),),
                    env={
                        **os.environ,
                        "PYTHONUNBUFFERED": "1",
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                        "RESTART": "yes" if restart else "no",
                    },
                    start_new_session=True,
                )
        self.wait_for_workers(1)

    def wait_for_workers(self, generation):
        """Waits until the workers of the n-th start of the application are ready."""
        is_lazy = "--lazy-apps" in self.process.args

        def ready():
            log = self.log()
            assert self.process.poll() is None, log
            apps = len(re.findall(r"^WSGI app 0 .* ready", log, re.MULTILINE))
            workers = len(re.findall(r"^accepting$", log, re.MULTILINE))
            return apps >= (2 if is_lazy else 1) * generation and workers >= 2 * generation

        eventually(ready, "all workers have loaded the application")

    def get(self, item):
        """Returns the status and the text of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        try:
            connection.request("GET", f"/{item}")
            reply = connection.getresponse()
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def end(self, signum=signal.SIGTERM):
        self.process.send_signal(signum)
        assert self.process.wait(HANG_S) == 0, self.log()

    def items(self, word):
        files = self.folder.glob(f"{word}-*")
        return sorted(line for file in files for line in file.read_text().splitlines())

    def log(self):
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def kill(self):
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.process.wait(HANG_S)


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.kill()


def send(server, count):
    """Sends that many items. Returns the processes that accepted some, and the items."""
    items = [f"item-{number}" for number in range(count)]
    replies = [server.get(item) for item in items]
    assert {status for status, _ in replies} == {200}, server.log()
    return {int(worker) for _, worker in replies}, sorted(items)


OPTIONS = {
    "plain": (),
    "enable-threads": ("--enable-threads",),
    "threads": ("--threads", "4"),
    "lazy-apps": ("--lazy-apps",),
    "fork hooks": ("--py-call-uwsgi-fork-hooks",),
    "single interpreter": ("--single-interpreter",),
}


@pytest.mark.matrix(3, name="hosts")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_workers_store_what_they_accepted(server, options):
    server.start(*options, *GRACEFUL)
    workers, items = send(server, 40)
    assert server.process.pid not in workers
    assert server.items("stored") == []
    server.end()
    assert server.items("stored") == items
    assert {int(file.name.rpartition("-")[2]) for file in server.folder.glob("stored-*")} == workers


@pytest.mark.matrix(3, name="hosts")
def test_queue_of_the_master_raises_in_the_workers_and_a_new_one_works(server):
    server.start(*GRACEFUL, restart=False)
    replies = [server.get(number) for number in range(20)]
    assert {status for status, _ in replies} == {503}, server.log()
    assert all("fork" in text and "make a new BatchQueue" in text for _, text in replies)
    # From here on the worker that got this item has a new queue.
    assert server.get("fresh")[0] == 503
    replies = [server.get(number) for number in range(100)]
    assert {status for status, _ in replies} <= {200, 503}
    server.end()
    stored = server.items("stored")
    assert stored == sorted(["fresh", *server.items("accepted")])
    assert len(stored) == 1 + sum(status == 200 for status, _ in replies)


class Load:
    """Clients that send items until they are stopped, while workers come and go."""

    def __init__(self, server, clients=4):
        self._server = server
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.accepted: list[str] = []
        self._clients = [
            threading.Thread(target=self._send, args=(number,)) for number in range(clients)
        ]

    def _send(self, client):
        number = 0
        while not self._stop.is_set():
            number += 1
            item = f"client-{client}-{number}"
            try:
                status, _ = self._server.get(item)
            except (OSError, http.client.HTTPException):
                continue  # its worker had ended
            if status == 200:
                with self._lock:
                    self.accepted.append(item)

    def __enter__(self):
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for client in self._clients:
            client.join(HANG_S)

    def wait_for(self, more):
        goal = len(self.accepted) + more
        eventually(lambda: len(self.accepted) >= goal, f"{more} more items were accepted")


@pytest.mark.matrix(4, name="hosts under load")
@pytest.mark.parametrize("options", [(), ("--lazy-apps",)], ids=["preloaded", "lazy-apps"])
@pytest.mark.parametrize("how", ["SIGTERM", "SIGHUP"])
def test_nothing_is_lost_under_load(server, options, how):
    server.start("--enable-threads", *options, *GRACEFUL)
    with Load(server) as load:
        load.wait_for(100)
        if how == "SIGHUP":
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_workers(2)
            load.wait_for(100)
        server.end()
    stored = server.items("stored")
    # A client may have lost the answer, never the item.
    assert stored == server.items("accepted"), server.log()
    assert set(load.accepted) <= set(stored)
    assert len(load.accepted) >= 100


@pytest.mark.matrix(3, name="hosts")
def test_example_of_the_guide_stores_what_it_accepted(server):
    page = (ROOT / "docs" / "guide" / "hosts.md").read_text()
    (example,) = [block for block in blocks(page, "py") if "def application" in block.text]
    (settings,) = blocks(page, "ini")
    (server.folder / "service.py").write_text(example.text, encoding="utf-8")
    (server.folder / "uwsgi.ini").write_text(settings.text, encoding="utf-8")
    server.run("--ini", "uwsgi.ini")
    assert {server.get(f"page-{number}")[0] for number in range(40)} == {202}, server.log()
    server.end()
    stored = (server.folder / "visits.txt").read_text().split()
    assert sorted(stored) == sorted(f"/page-{number}" for number in range(40))


@pytest.mark.parametrize("has_threads", [0, 1])
def test_warning_names_the_remedy_for_starving_threads(has_threads):
    """What uWSGI up to 2.0.26 says of itself without `--enable-threads`; later ones say 1."""
    code, _, err = run_script(f"""
import types
sys.modules["uwsgi"] = types.ModuleType("uwsgi")
sys.modules["uwsgi"].has_threads = {has_threads}
for name in "ab":
    BatchQueue(name, config()).shutdown()
""")
    assert code == 0, err
    assert err.count("uWSGI runs without --enable-threads") == 1 - has_threads
    assert err.count("add enable-threads = true") == 1 - has_threads
