"""Programs that tests start in new processes. The modules they import lie beside them."""

from pathlib import Path

_FOLDER = Path(__file__).parent

CLUSTER_DRIVER = _FOLDER / "cluster_driver.py"
DELIVERY_SESSION = _FOLDER / "delivery_session.py"
EXPORTING_PROGRAM = _FOLDER / "exporting_program.py"
KILLED_DRIVER = _FOLDER / "killed_driver.py"
PIPELINE_DRIVER = _FOLDER / "pipeline_driver.py"
STRESS = _FOLDER / "stress.py"
