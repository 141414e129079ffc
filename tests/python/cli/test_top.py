"""`batchqueue top`: the queues of real processes, and who may read them."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from batchqueue import ConfigError
from batchqueue.cli import main
from batchqueue.top import serve_top, socket_folder
from core_support.scripts import SCRIPT_HEADER, run_script

SERVER = (
    SCRIPT_HEADER
    + """
from batchqueue.top import serve_top
queue = BatchQueue("orders", config())
queue.add_handler(int, lambda batch: None)
queue.produce_many(range(1_234))
queue.flush()
assert serve_top() == serve_top()
say("ready")
sys.stdin.read()
"""
)

LINES = """
for _ in sys.stdin:
    queue.produce_many(range(900))
    queue.flush()
"""


@pytest.fixture
def folder(monkeypatch):
    """The user's runtime directory. Short, as the path of a socket must be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def start(folder):
    """Starts processes that let `batchqueue top` see them; they end when their input does."""
    started = []

    def start(code=SERVER):
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.communicate("")


def test_the_queues_of_every_process_are_shown(start, capsys):
    processes = [start(), start()]
    assert main(["top", "--once"]) == 0
    text = capsys.readouterr().out
    for process in processes:
        assert f"process {process.pid}, 1 queue: " in text
    assert text.count("orders") == 4, "one row for the queue and one for its handler, twice"
    assert main(["top", str(processes[0].pid), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["process"] == processes[0].pid
    assert found["queues"][0]["handlers"]["int"]["consumed"] == 1_234


def test_rates_are_shown_until_ctrl_c(start):
    """The queue stands still at first, and each line to its process puts 900 items in."""
    process = start(SERVER.replace("sys.stdin.read()", LINES))
    with subprocess.Popen(
        [sys.executable, "-m", "batchqueue", "top", str(process.pid)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as top:
        rows = (line.split() for line in top.stdout if line.startswith("orders"))
        assert next(rows)[1:3] == ["?", "?"], "one reading has no rate"
        assert next(rows)[1:3] == ["0", "0"]
        process.stdin.write("\n")
        process.stdin.flush()
        rate = next(row[1] for row in rows if row[1] != "0")
        assert 0 < int(rate) <= 900, "900 items in a second or a little more"
        top.send_signal(signal.SIGINT)
        _, err = top.communicate()
    assert (top.returncode, err) == (130, "")


def test_only_its_user_can_reach_a_socket_which_ends_with_its_process(start, folder):
    process = start()
    path = folder / "batchqueue" / f"{process.pid}.sock"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    process.communicate("")
    assert not path.exists()


def test_what_a_killed_process_left_is_removed(start, folder, capsys):
    running, killed = start(), start()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert main(["top", "--once"]) == 0
    assert str(killed.pid) not in capsys.readouterr().out
    assert [path.stem for path in folder.glob("batchqueue/*")] == [str(running.pid)]


def test_a_socket_has_its_name_once_it_answers(folder):
    """A reader takes a socket that refuses it for that of a process that was killed."""
    exit_code, out, err = run_script("""
import socket
from batchqueue.top import serve_top
from batchqueue import top as sockets

class Watched(socket.socket):
    def listen(self, *arguments):
        say(sockets.processes())
        super().listen(*arguments)

socket.socket = Watched
serve_top()
say(sockets.processes() == [os.getpid()])
""")
    assert (exit_code, out) == (0, ["[]", "True"]), err


def test_a_process_opens_nothing_unless_it_is_asked_to(folder, capsys):
    assert main(["top", "--once"]) == 1
    assert "no process of this user has called batchqueue.top.serve_top()" in (
        capsys.readouterr().err
    )
    assert main(["top", str(os.getpid()), "--once"]) == 1
    assert (
        f"process {os.getpid()} does not answer, or has not called batchqueue.top.serve_top(); "
        "call it in the program that you want to see"
    ) in capsys.readouterr().err
    assert list(folder.glob("batchqueue/*")) == []


def test_the_help_says_that_json_is_a_list(capsys):
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    assert "a JSON list with an object per process" in " ".join(capsys.readouterr().out.split())


def test_a_forked_child_answers_only_after_it_has_asked(start, capsys):
    code = SERVER.replace(
        'say("ready")',
        """
reader, writer = os.pipe()
if os.fork() == 0:
    BatchQueue("child", config()) and serve_top()
    os.write(writer, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(reader, 1)
say("ready")
""",
    )
    parent = start(code)
    assert main(["top", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {each["process"]: [queue["name"] for queue in each["queues"]] for each in found}
    assert names.pop(parent.pid) == ["orders"]
    # The queue of the child no longer exists, and those of its parent are not there.
    assert list(names.values()) == [[]]


def test_a_folder_that_others_can_write_to_is_refused(folder):
    (folder / "batchqueue").mkdir()
    os.chmod(folder / "batchqueue", 0o777)
    with pytest.raises(ConfigError, match=r"is not for user \d+ alone; remove it"):
        serve_top()


def test_a_path_that_is_too_long_is_refused_with_a_remedy(folder, monkeypatch):
    deep = folder / ("x" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(ConfigError, match=r"with a short path"):
        serve_top()


def test_without_a_runtime_directory_the_folder_has_the_number_of_the_user(monkeypatch, folder):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert socket_folder() == folder / f"batchqueue-{os.getuid()}"
