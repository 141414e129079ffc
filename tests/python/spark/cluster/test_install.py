"""Ways of getting the package to executors that lack it, and one that cannot work."""

import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow
import pytest

from batchqueue.outputs import SqliteStore
from pages import ROOT
from spark_support.cluster import CHECKOUT, Driver, DriverError, Processes, Run, conf
from spark_support.flight_job import Results, difference, stored
from spark_support.notes import Notes
from wheels import local_wheel

pytestmark = pytest.mark.matrix(3, name="ways to install")


@pytest.fixture(scope="module")
def wheel() -> Path:
    return local_wheel()


def make_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Make an environment with some packages of the present one; return its Python.

    They are links, which hide what is next to them here, such as the checkout's package.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (ours,) = {path.parent for path in Path(pyarrow.__file__).parents if path.name == "pyarrow"}
    (theirs,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for path in (*ours.glob(package), *ours.glob(f"{package}.libs")):
            (theirs / path.name).symlink_to(path)
    return python


def blocks(page: str, language: str, part: str = "") -> list[str]:
    """Return the fenced blocks of a page that contain this text."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [block for block in found if part in block]


def pip_install(wheel: Path, python: Path, *options: str | Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([*pip, *options, wheel], check=True)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the executors, without the package. Spark brings pyspark along."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    return make_environment(folder, ["numpy", "pyarrow"])


@pytest.fixture
def _free_cores(driver: Driver) -> None:
    """Leaves the cores of the cluster to other drivers than the usual one."""
    driver.stop()


@pytest.mark.usefixtures("_free_cores")
def test_wheel_in_the_environment_of_driver_and_executors(
    wheel: Path,
    processes: Processes,
    master: str,
    run: Run,
    notes: Notes,
    wanted: Results,
    tmp_path: Path,
) -> None:
    python = make_environment(tmp_path / "environment", ["numpy", "pyarrow", "pyspark", "py4j"])
    pip_install(wheel, python)
    with Driver(processes, "driver in an environment", python) as driver:
        driver.session(conf(master), py_files=True)
        driver.order("stream", fault="NoFault", **asdict(run))
    assert difference(stored(SqliteStore(run.database)), wanted) == []
    for end in notes.read("end"):
        assert Path(end["package"]).is_relative_to(tmp_path / "environment")


@pytest.mark.usefixtures("_free_cores")
def test_archive_of_the_package_by_the_commands_of_the_page(
    wheel: Path, bare_python: Path, processes: Processes, master: str, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "spark" / "cluster.md").read_text()
    (application,), (output,) = blocks(page, "python"), blocks(page, "text")
    (commands,) = blocks(page, "sh", "--archives packages.zip")
    (tmp_path / "orders.py").write_text(application)
    (tmp_path / "shared").mkdir()
    shutil.copy(wheel, tmp_path)
    settings = [
        f"{name} {value}\n" for name, value in conf(master).items() if name != "spark.master"
    ]
    (tmp_path / "spark-defaults.conf").write_text("".join(settings))
    script = commands.replace("spark://master:7077", master).replace(" /shared", " shared")
    path = f"{Path(sys.executable).parent}:{processes.home / 'bin'}:/usr/bin:/bin"
    environment = processes.environment(
        PATH=path, PIP_QUIET="1", PYSPARK_PYTHON=str(bare_python), SPARK_CONF_DIR=str(tmp_path)
    )
    printed = tmp_path / "printed"
    with printed.open("wb") as stdout:
        processes.run("page", ["sh", "-euc", script], env=environment, cwd=tmp_path, stdout=stdout)
    assert printed.read_text() == output


@pytest.mark.slow
@pytest.mark.usefixtures("_free_cores")
def test_packed_environment_with_its_own_interpreter(
    wheel: Path,
    processes: Processes,
    master: str,
    run: Run,
    notes: Notes,
    wanted: Results,
    tmp_path: Path,
) -> None:
    python = make_environment(tmp_path / "made here", ["numpy", "pyarrow", "pyspark", "py4j"])
    pip_install(wheel, python)
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", tmp_path / "made here")
    (tmp_path / "made here").rename(tmp_path / "gone")
    beside_the_driver = tmp_path / "driver"
    shutil.unpack_archive(archive, beside_the_driver / "environment", filter="fully_trusted")
    with Driver(
        processes, "driver of an archive", "./environment/bin/python", beside_the_driver
    ) as driver:
        driver.session(conf(master, spark_archives=f"{archive}#environment"), py_files=True)
        driver.order("stream", fault="NoFault", **asdict(run))
    assert difference(stored(SqliteStore(run.database)), wanted) == []
    for end in notes.read("end"):
        assert Path(end["package"]).is_relative_to(processes.folder)


@pytest.mark.slow
@pytest.mark.usefixtures("_free_cores")
def test_wheel_among_the_py_files_is_not_found_and_as_a_zip_lacks_its_library(
    bare_python: Path, wheel: Path, processes: Processes, master: str, run: Run, tmp_path: Path
) -> None:
    environment = {"PYSPARK_PYTHON": str(bare_python), "PYTHONPATH": CHECKOUT}
    with Driver(processes, "driver with py-files", **environment) as driver:
        driver.session(conf(master))
        for name, missing in ((wheel.name, "batchqueue"), ("batchqueue.zip", "batchqueue._core")):
            driver.order("py_file", path=shutil.copy(wheel, tmp_path / name))
            with pytest.raises(
                DriverError, match=f"ModuleNotFoundError: No module named '{missing}'\n"
            ):
                driver.order("stream", fault="NoFault", **asdict(run))
