"""Ways of getting the package to executors whose Python does not have it, and one that cannot work."""

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow
import pytest
from cluster_support import Driver, DriverError, Processes, Run, conf
from flight_job import Results, difference, stored
from notes import Notes

from batchqueue.outputs import SqliteStore

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The wheel that `make wheel` built."""
    wheels = sorted((ROOT / "dist").glob("batchqueue-*.whl"))
    assert wheels, "there is no wheel in dist; build it with: make wheel"
    return wheels[-1]


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Make an environment with packages of this one and nothing else; return its Python.

    They are links: what is next to them here, such as the checkout's own package, is not seen.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (ours,) = {path.parent for path in Path(pyarrow.__file__).parents if path.name == "pyarrow"}
    (theirs,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for path in (*ours.glob(package), *ours.glob(f"{package}.libs")):
            (theirs / path.name).symlink_to(path)
    return python


def pip_install(wheel: Path, python: Path, *options: str | Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, *options, wheel], check=True)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the executors run: pyarrow. Spark brings pyspark along."""
    return make_environment(tmp_path_factory.mktemp("bare") / "environment", ["pyarrow", "numpy"])


@pytest.fixture(scope="module")
def packages(wheel: Path, bare_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install --target` makes of the wheel."""
    folder = tmp_path_factory.mktemp("target") / "packages"
    pip_install(wheel, bare_python, "--target", folder)
    return folder


@pytest.fixture(scope="module")
def bare_driver(processes: Processes, bare_python: Path, packages: Path) -> Iterator[Driver]:
    """A driver that has the package, and whose executors' Python does not."""
    one = Driver(processes, "driver with packages", PYSPARK_PYTHON=str(bare_python), PYTHONPATH=str(packages))
    yield one
    one.close()


@pytest.fixture
def _cores(driver: Driver) -> None:
    """The cores of the cluster are for other drivers than the usual one."""
    driver.stop()


@pytest.mark.usefixtures("_cores")
def test_wheel_in_the_environment_of_driver_and_executors(
    wheel: Path, processes: Processes, master: str, run: Run, notes: Notes, wanted: Results, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "environment", ["pyarrow", "numpy", "pyspark", "py4j"])
    pip_install(wheel, python)
    driver = Driver(processes, "driver in an environment", python)
    driver.session(conf(master), py_files=True)
    driver.order("stream", trouble="Trouble", **asdict(run))
    driver.close()
    assert difference(stored(SqliteStore(run.database)), wanted) == []
    for end in notes.read("end"):
        assert Path(end["package"]).is_relative_to(tmp_path / "environment")


@pytest.mark.usefixtures("_cores")
def test_archive_of_the_package_on_the_path_of_the_executors(
    bare_driver: Driver,
    packages: Path,
    processes: Processes,
    master: str,
    run: Run,
    notes: Notes,
    wanted: Results,
    tmp_path: Path,
) -> None:
    archive = shutil.make_archive(str(tmp_path / "packages"), "zip", packages)
    shipped = {"spark_archives": f"{archive}#packages", "spark_executorEnv_PYTHONPATH": "packages"}
    bare_driver.session(conf(master, **shipped), py_files=True)
    bare_driver.order("stream", trouble="Trouble", **asdict(run))
    bare_driver.stop()
    assert difference(stored(SqliteStore(run.database)), wanted) == []
    for end in notes.read("end"):
        package = Path(end["package"])
        assert package.is_relative_to(processes.folder)
        assert package.parts[-3:] == ("packages", "batchqueue", "__init__.py")


@pytest.mark.usefixtures("_cores")
def test_packed_environment_with_its_own_interpreter(
    wheel: Path, processes: Processes, master: str, run: Run, notes: Notes, wanted: Results, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "made here", ["pyarrow", "numpy", "pyspark", "py4j"])
    pip_install(wheel, python)
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", tmp_path / "made here")
    (tmp_path / "made here").rename(tmp_path / "gone")
    beside_the_driver = tmp_path / "driver"
    shutil.unpack_archive(archive, beside_the_driver / "environment", filter="fully_trusted")
    driver = Driver(processes, "driver of an archive", "./environment/bin/python", beside_the_driver)
    driver.session(conf(master, spark_archives=f"{archive}#environment"), py_files=True)
    driver.order("stream", trouble="Trouble", **asdict(run))
    driver.close()
    assert difference(stored(SqliteStore(run.database)), wanted) == []
    for end in notes.read("end"):
        assert Path(end["package"]).is_relative_to(processes.folder)


@pytest.mark.usefixtures("_cores")
def test_wheel_among_the_py_files_is_not_found_and_renamed_to_zip_lacks_its_library(
    bare_driver: Driver, wheel: Path, master: str, run: Run, tmp_path: Path
) -> None:
    bare_driver.session(conf(master))
    for name, missing in ((wheel.name, "batchqueue"), ("batchqueue.zip", "batchqueue._core")):
        bare_driver.order("py_file", path=shutil.copy(wheel, tmp_path / name))
        with pytest.raises(DriverError, match=f"ModuleNotFoundError: No module named '{missing}'\n"):
            bare_driver.order("stream", trouble="Trouble", **asdict(run))
    bare_driver.stop()
