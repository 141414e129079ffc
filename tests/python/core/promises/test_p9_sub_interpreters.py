"""P9: a sub-interpreter is refused with the remedy before it can touch the main one's queues."""

import sys

import pytest

from core_support.scripts import SCRIPT_HEADER, run_script

pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")

TRY = '''
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

other = interpreters.create()
interpreters.run_string(other, """
import os
try:
    import batchqueue
except ImportError as error:
    os.write(1, f"refused: {error}".encode() + bytes([10]))
""")
interpreters.destroy(other)
'''

USE = """
queue = BatchQueue("queue", config())
queue.add_handler(int, lambda batch: say(batch))
queue.produce_many([1, 2])
"""


@pytest.mark.parametrize(
    "header", ["", SCRIPT_HEADER], ids=["before the main one", "after the main one"]
)
def test_import_in_a_sub_interpreter_is_refused_and_the_main_one_keeps_working(header):
    code, (refusal, *delivered), err = run_script(TRY + SCRIPT_HEADER + USE, header=header)
    assert (code, err) == (0, "")
    assert refusal.startswith("refused: batchqueue cannot be imported in a sub-interpreter")
    assert "in a separate process" in refusal
    assert delivered == ["[1, 2]"]


def test_end_of_a_sub_interpreter_leaves_queues_open():
    code, out, err = run_script(USE + TRY + "say(queue.running, queue.produce(3), queue.flush(30))")
    assert (code, err) == (0, "")
    assert sum(line.startswith("refused") for line in out) == 1
    assert "True True True" in out
