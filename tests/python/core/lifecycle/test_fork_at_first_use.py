"""A fork while other threads use the bindings for the first time leaves nothing half made."""

import pytest

from core_support.scripts import run_script

SCRIPT = """
import warnings
import pyarrow as pa
from batchqueue.aggregation import Aggregation, Aggregator, Count

warnings.simplefilter("ignore")
sys.setswitchinterval(1e-4)
rows = pa.record_batch({"tag": ["a"], "key": [1]})
begin = threading.Event()

def use():
    counts = Aggregator(Aggregation(keys=["key"], measures={"n": Count()}))
    counts.update(rows)
    counts.result()

def use_first():
    begin.wait()
    use()

for _ in range(8):
    threading.Thread(target=use_first, daemon=True).start()
begin.set()
children = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        use()
        os._exit(0)
    children.append(pid)
say(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
os._exit(0)
"""


@pytest.mark.parametrize("attempt", range(16))
def test_children_convert_arrow_data(attempt):
    exit_code, out, err = run_script(SCRIPT)
    assert exit_code == 0, err
    assert out == [" ".join("0" * 10)]
