"""Every argument that names a local file or folder: what has a scheme is refused, with a remedy."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchqueue import BatchQueue, BatchQueueConfig, ConfigError, ThreadPolicy
from batchqueue.cli import main
from batchqueue.outputs import ParquetStore, SqliteStore
from batchqueue.pipeline import FileSink, FileSource, FunctionSink, IterableSource, Pipeline
from batchqueue.pipeline.settings import SparkOptions


def queue_picture(path: Any) -> None:
    with BatchQueue("q", BatchQueueConfig(threads=ThreadPolicy.fixed(1))) as queue:
        queue.picture(path)


def pipeline_picture(path: Any) -> None:
    pipeline().picture(path)


def run_picture(path: Any) -> None:
    with pipeline().start() as run:
        run.picture(path)


def pipeline(**settings: Any) -> Pipeline:
    made = Pipeline("p", **settings)
    made.source(IterableSource(lambda: [{"n": 1}])).to(FunctionSink(lambda chunks: None))
    return made


def listing(path: Any) -> None:
    FileSource("orders", watch=True, listing=path)


def control(path: Any) -> None:
    SparkOptions.parse({"control": path}, None)


ARGUMENTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "SqliteStore": (SqliteStore, "PostgresStore.*IcebergStore"),
    "ParquetStore": (ParquetStore, "IcebergStore"),
    "FileSink": (FileSink, "FunctionSink"),
    "FileSource": (FileSource, "filesystem"),
    "FileSource listing": (listing, "local or mounted"),
    "Pipeline checkpoint": (lambda path: pipeline(checkpoint=path), "on_spark"),
    "on_spark control": (control, "all machines mount"),
    "queue.picture": (queue_picture, "local or mounted"),
    "pipeline.picture": (pipeline_picture, "local or mounted"),
    "run.picture": (run_picture, "local or mounted"),
}
every_argument = pytest.mark.parametrize("argument", ARGUMENTS)

ADDRESSES = [
    "dbfs:/orders.svg",
    "hdfs:orders.svg",
    "abfss:/container@account/orders.svg",
    Path("s3://bucket/orders.svg"),
    Path("gs://bucket/orders.svg"),
    Path("S3A://bucket/orders.svg"),
    Path("made-up://bucket/orders.svg"),
]
URIS = ["s3://bucket/orders.svg", "gs://bucket/orders.svg", "hdfs://name/orders.svg"]
"""What `FileSource` opens, and no other one does."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def made() -> list[str]:
    return sorted(os.listdir())


@every_argument
@pytest.mark.parametrize("address", [*ADDRESSES, *URIS], ids=str)
def test_an_address_elsewhere_is_refused_and_nothing_is_made(argument: str, address: Any) -> None:
    call, remedy = ARGUMENTS[argument]
    if call is FileSource and address in URIS:
        return  # it opens them; `pipeline/sources` has the tests
    with pytest.raises(ConfigError, match=rf"is not on this machine; .*{remedy}"):
        call(address)
    assert made() == []


@every_argument
@pytest.mark.parametrize(
    "address", ["file:///data/a.svg", Path("file:///data/a.svg"), "file:a.svg?mode=ro"], ids=str
)
def test_a_file_uri_is_refused_with_the_path_in_it(argument: str, address: Any) -> None:
    call, _ = ARGUMENTS[argument]
    if call is FileSource and address == "file:///data/a.svg":
        return
    path = "a.svg" if "?" in str(address) else "/data/a.svg"
    with pytest.raises(ConfigError, match=rf"a URI; give the path alone: '{path}'"):
        call(address)
    assert made() == []


@every_argument
@pytest.mark.parametrize("given", [3, "", b"orders.svg", "a\0b.svg", ["a.svg", 3]], ids=repr)
def test_what_is_not_a_path_is_refused(argument: str, given: Any) -> None:
    call, _ = ARGUMENTS[argument]
    with pytest.raises(ConfigError, match=r"give (a|at least one) path"):
        call(given)
    assert made() == []


@pytest.mark.parametrize(
    "given", ["~/a", Path("~/a"), "a", "./a", "monday:1/../a", "C:\\a", "12:30/a"], ids=str
)
@pytest.mark.parametrize(
    "call", [SqliteStore, ParquetStore, FileSink], ids=lambda call: call.__name__
)
def test_a_path_is_absolute_from_the_start(
    call: Callable[[Any], Any], given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = call(given)
    monkeypatch.chdir("/")
    path = getattr(store, "path", None) or store.directory
    assert path == tmp_path / str(given).removeprefix("~/")


def test_a_home_folder_is_expanded_by_sources_sinks_and_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("n\n1\n2\n")
    flow = Pipeline("p", checkpoint="~/cuts")
    flow.source(FileSource("~/*.csv", format="csv")).to(FileSink("~/clean", format="csv"))
    flow.run()
    assert "2" in next((tmp_path / "clean").glob("*.csv")).read_text()
    flow.picture("~/flow.svg")
    assert made() == ["clean", "cuts", "flow.svg", "orders.csv"]


def test_a_folder_that_is_named_like_a_scheme_has_another_path(tmp_path: Path) -> None:
    assert SqliteStore("./s3:/a.db").path == tmp_path / "s3:/a.db"


def test_a_path_of_spark_may_be_an_address() -> None:
    options = SparkOptions.parse({"checkpoint": "s3a://bucket/revenue"}, None)
    assert options.checkpoint_of("sink") == "s3a://bucket/revenue/sink"


def test_a_password_in_an_address_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"postgresql://\.\.\.@db1/shop") as raised:
        SqliteStore("postgresql://me:secret@db1/shop")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "command",
    [
        ("store", "backup", "metrics.db", "s3://bucket/copy"),
        ("store", "restore", "s3://bucket/copy", "metrics.db"),
        ("store", "restore", "metrics.db", "s3://bucket/metrics"),
        ("store", "ls", "s3://bucket/metrics"),
        ("demo", "--output", "s3://bucket/demo"),
    ],
    ids=" ".join,
)
def test_commands_refuse_an_address(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    SqliteStore("metrics.db").prepare()
    try:
        code = main(list(command))
    except SystemExit as exited:
        code = exited.code
    assert code == 2
    refusals = ("s3: is not on this machine", "s3://bucket/metrics does not exist")
    assert any(map(capsys.readouterr().err.__contains__, refusals))
    assert made() == ["metrics.db"]
