"""What is published: the wheel, its metadata, and the pinned development set."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest

from pages import README, ROOT, blocks, run
from wheels import local_wheel

_VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]


@pytest.fixture(scope="module")
def wheel() -> Path:
    return local_wheel()


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with only the wheel, made without a package index and without Rust."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-index", wheel],
        env={"PATH": str(python.parent), "HOME": str(folder)},
        check=True,
    )
    return python


def test_wheel_holds_the_library_the_stubs_and_the_licence_but_no_tests(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        "_core.abi3.so",
        "_core.pyi",
        "py.typed",
        "__init__.py",
        "cli/__init__.py",
        "groups/redis/scripts/join.lua",
        "spark/driver/format.py",
    }
    assert {f"batchqueue/{name}" for name in expected} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "batchqueue",
        f"batchqueue_rs-{_VERSION}.dist-info",
    }
    assert "-cp311-abi3-" in wheel.name


def test_wheel_runs_the_first_example_of_the_readme_without_rust_and_without_any_other_package(
    bare_python: Path, tmp_path: Path
):
    first = blocks(README.read_text(), "python")[0]
    (printed,) = run([first], tmp_path, str(bare_python), str(bare_python.parent))
    if first.output is not None:
        assert printed == first.output


def test_demo_in_a_bare_environment_names_the_extra_to_install(bare_python: Path, tmp_path: Path):
    ended = subprocess.run(
        [bare_python.parent / "batchqueue", "demo"],
        cwd=tmp_path,
        env={"PATH": str(bare_python.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install 'batchqueue-rs[demo]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sink_in_a_bare_environment_names_the_extra_to_install(bare_python: Path, tmp_path: Path):
    ended = subprocess.run(
        [bare_python, "-c", "import batchqueue.spark"],
        cwd=tmp_path,
        env={"PATH": str(bare_python.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "pip install 'batchqueue-rs[spark]'" in ended.stderr


def test_installed_version_is_the_crates_and_the_first_of_the_changelog():
    assert metadata("batchqueue-rs")["Version"] == _VERSION
    changes = (ROOT / "CHANGELOG.md").read_text()
    first = re.search(r"^## \[([^\]]+)\]", changes, re.MULTILINE)
    assert first
    assert first[1] in {"Unreleased", _VERSION}


def test_running_python_is_one_that_the_package_allows():
    lowest = metadata("batchqueue-rs")["Requires-Python"].removeprefix(">=")
    assert sys.version_info >= tuple(int(part) for part in lowest.split("."))


@pytest.mark.parametrize("name", ["requirements-dev", "requirements-demo"])
def test_lock_pins_the_whole_set_with_hashes_and_names_no_index(name: str):
    wanted = re.findall(r"^([a-z][a-z0-9-]*)", (ROOT / f"{name}.in").read_text(), re.MULTILINE)
    assert set(wanted) <= set(_pinned(name))
    assert not re.search(
        r"https?://|--(extra-)?index-url|--find-links", (ROOT / f"{name}.lock").read_text()
    )


def test_demo_is_locked_to_the_versions_of_the_development_set():
    demo, development = _pinned("requirements-demo"), _pinned("requirements-dev")
    assert demo
    assert demo.items() <= development.items()


def _pinned(name: str) -> dict[str, set[str]]:
    """The versions of each package in a lock file; several where they depend on the Python."""
    versions: dict[str, set[str]] = {}
    lock = (ROOT / f"{name}.lock").read_text()
    for package, version in re.findall(
        r"^([a-z][a-z0-9-]*)==(\S+).*?\\\n\s+--hash=\w+:", lock, re.MULTILINE
    ):
        versions.setdefault(package, set()).add(version)
    return versions


def test_metadata_names_the_distribution_its_author_and_its_licence():
    found = metadata("batchqueue-rs")
    assert found["Name"] == "batchqueue-rs"
    assert "batchqueue" in (found["Author"] or found["Author-email"])
    assert found["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in (found.get_all("Classifier") or [])
