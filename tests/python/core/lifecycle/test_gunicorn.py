"""A service under `gunicorn --preload`: each worker has the queue, and SIGTERM loses nothing."""

import os
import signal
import subprocess
import sys
import textwrap
import urllib.request

import pytest

from core_support.waits import HANG_S, eventually

pytest.importorskip("gunicorn")

APP = """
import os
from pathlib import Path
from batchqueue import BatchQueue, BatchQueueConfig, ThreadPolicy

folder = Path(__file__).parent
queue = BatchQueue(
    "orders",
    BatchQueueConfig(
        threads=ThreadPolicy.fixed(1),
        min_idle_ms=60_000,
        max_idle_ms=60_000,
        restart_after_fork=True,
    ),
)

@queue.handler(str)
def store(batch):
    with open(folder / f"stored-{os.getpid()}", "a") as file:
        file.writelines(f"{item}\\n" for item in batch)

def app(environ, start_response):
    assert queue.produce(environ["PATH_INFO"].strip("/"))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


@pytest.fixture(params=["sync", "gthread", "gevent"])
def server(request, tmp_path):
    if request.param == "gevent":
        pytest.importorskip("gevent")
    (tmp_path / "service.py").write_text(textwrap.dedent(APP), encoding="utf-8")
    log = (tmp_path / "log").open("w+", encoding="utf-8")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "--preload", "--workers", "2"),
            *("--worker-class", request.param),
            *("--bind", "127.0.0.1:0", "--chdir", str(tmp_path), "service:app"),
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )

    def said(word):
        text = (tmp_path / "log").read_text(encoding="utf-8")
        assert process.poll() is None, text
        return text.count(word)

    try:
        eventually(lambda: said("Booting worker") == 2, "both workers have started")
        text = (tmp_path / "log").read_text(encoding="utf-8")
        port = int(text.split("Listening at: http://127.0.0.1:")[1].split()[0])
        yield process, port
    finally:
        process.kill()
        process.wait(HANG_S)
        log.close()


@pytest.mark.matrix(3)
def test_sigterm_delivers_what_the_workers_accepted(server, tmp_path):
    process, port = server
    workers = set()
    for number in range(40):
        url = f"http://127.0.0.1:{port}/{number}"
        with urllib.request.urlopen(url, timeout=HANG_S) as reply:
            workers.add(int(reply.read()))
    assert process.pid not in workers
    # No batch was due: the queues rest for a minute.
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    stored = sorted(
        int(line) for file in tmp_path.glob("stored-*") for line in file.read_text().splitlines()
    )
    assert stored == list(range(40))
    writers = {int(file.name.removeprefix("stored-")) for file in tmp_path.glob("stored-*")}
    assert writers == workers
