"""Every example runs: the pages, the programs beside them, and the doctests of the package."""

import doctest
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groups_support.redis_server import find_program, library_path, skip_without_server
from pages import PAGES, README, ROOT, TIMEOUT_S, blocks, name, run, run_script

_PACKAGE = ROOT / "python"
_SUBPACKAGES = (
    *("aggregation", "exporters", "groups", "metrics", "outputs", "pipeline", "presets"),
    *("spark", "top"),
)
_MODULES = [
    ".".join(source.relative_to(_PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for source in sorted(_PACKAGE.glob("batchqueue/**/*.py"))
    if ">>> " in source.read_text()
]


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that makes a database `shop`, and the environment that leads to it."""

    def provide() -> None:
        server = request.getfixturevalue("postgres_server")
        server.create_database("shop")
        words = {
            "HOST": "127.0.0.1",
            "PORT": str(server.port),
            "USER": "tester",
            "PASSWORD": server.password,
        }
        for word, value in words.items():
            monkeypatch.setenv(f"PG{word}", value)

    return provide


@pytest.fixture
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that starts a Redis server, and sets the URL that leads to it."""

    def provide() -> None:
        server = request.getfixturevalue("redis_server")
        monkeypatch.setenv("REDIS_URL", server.url)

    return provide


@pytest.fixture
def topics(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that starts a Kafka broker, and lets Spark and the program find it."""

    def provide() -> None:
        broker = request.getfixturevalue("kafka_broker")
        monkeypatch.setenv("KAFKA", broker.address)
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", broker.submit_arguments)

    return provide


@pytest.fixture
def brokers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns a function that starts a Kafka broker for groups, and sets its address."""

    def provide() -> None:
        broker = request.getfixturevalue("new_kafka_broker")
        monkeypatch.setenv("KAFKA_BROKERS", broker.address)

    return provide


_TURNS = pytest.mark.matrix(5, name="pages with Spark")


def with_examples() -> list[Any]:
    """The pages with a program; those that start Spark take turns, but for the README."""
    programs = {page: blocks(page.read_text(), "python") for page in PAGES}
    return [
        pytest.param(
            page,
            marks=_TURNS if page != README and "spark" in str(program) else (),
            id=name(page),
        )
        for page, program in programs.items()
        if program
    ]


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("page", with_examples())
def test_page_runs_as_one_program_and_prints_what_it_shows(
    page: Path,
    tmp_path: Path,
    database: Callable[[], None],
    streams: Callable[[], None],
    topics: Callable[[], None],
    brokers: Callable[[], None],
):
    program = blocks(page.read_text(), "python")
    if any(word in block.text for block in program for word in ("PostgresStore(", "psycopg.")):
        database()
    if any("REDIS_URL" in block.text for block in program):
        streams()
    if any('environ["KAFKA"]' in block.text for block in program):
        topics()
    if any("KAFKA_BROKERS" in block.text for block in program):
        brokers()
    for block, printed in zip(program, run(program, tmp_path), strict=True):
        if block.output is not None:
            assert printed == block.output, f"{name(page)}, block on line {block.line}"


def programs() -> list[Any]:
    """The programs of the folder of examples; those with Spark take turns with such pages."""
    return [
        pytest.param(path, marks=_TURNS if "spark" in path.read_text() else (), id=name(path))
        for path in sorted((ROOT / "docs" / "examples").glob("*.py"))
    ]


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("program", programs())
def test_program_stores_what_pandas_or_spark_sql_computes(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if "redis-server" in program.read_text():
        skip_without_server()
        (tmp_path / "redis-server").symlink_to(find_program())
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setenv("LD_LIBRARY_PATH", library_path())
    printed = run_script(program, tmp_path, "8000")
    assert re.search(r": [\d,]+ values are those of (pandas|Spark SQL)\n\Z", printed), printed


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_answers_as_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    runner = doctest.DocTestRunner()
    for block in blocks(page.read_text(), "pycon"):
        test = doctest.DocTestParser().get_doctest(
            block.text, names, name(page), str(page), block.line - 1
        )
        runner.run(test, clear_globs=False)
        names = test.globs
    assert runner.failures == 0


@pytest.mark.parametrize("module", _MODULES)
def test_docstring_answers_as_shown(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("module", ["batchqueue", *(f"batchqueue.{name}" for name in _SUBPACKAGES)])
def test_every_public_name_is_in_an_example(module: str):
    programs = [
        block.text for page in PAGES for block in blocks(page.read_text(), "python", "pycon")
    ]
    docstrings = [
        example.source
        for source in _MODULES
        for test in doctest.DocTestFinder().find(importlib.import_module(source))
        for example in test.examples
    ]
    used = set(re.findall(r"\w+", "\n".join([*programs, *docstrings])))
    assert sorted(set(importlib.import_module(module).__all__) - used) == []


@pytest.mark.parametrize("module", ["batchqueue", *(f"batchqueue.{name}" for name in _SUBPACKAGES)])
def test_every_public_name_is_on_the_page_of_names(module: str):
    page = (ROOT / "docs" / "reference" / "names.md").read_text()
    section = re.search(rf"^## `{module}`\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    assert section
    listed = set(re.findall(r"`(\w+)`", section[1]))
    assert sorted(set(importlib.import_module(module).__all__) - listed) == []


def test_wrong_output_and_failing_block_are_found(tmp_path: Path):
    first = "```python\nx = 1\nprint(x)  # -> 1\n```\n\n"
    page = first + "```python\nprint(x + 1)\n```\n\nprints\n\n```text\n3\n```\n"
    program = blocks(page, "python")
    assert [block.output for block in program] == ["1\n", "3\n"]
    assert run(program, tmp_path) == ["1\n", "2\n"]
    with pytest.raises(AssertionError, match=r"page\.py.*, line 7"):
        run(program[1:], tmp_path / "alone")
