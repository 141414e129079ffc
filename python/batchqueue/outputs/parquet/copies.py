"""Copies of a Parquet store, each sink as of one commit, and restores from them.

Data files never change, and a manifest names those of one commit. So a copy writes the manifest
that it has read after the files that the manifest names.
"""

import errno
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq

from batchqueue.base.files import sync, unlock, write_durably
from batchqueue.exceptions import ConfigError
from batchqueue.outputs.parquet.manifest import (
    Manifest,
    Summary,
    acquire,
    directory_errors,
    newest_epochs,
    sinks_in,
    written_files,
)
from batchqueue.outputs.store import StoreError, StoreReport, StoreUnavailableError

_READS = 10
"""Attempts to copy a state whose files are removed meanwhile."""


def backup_parquet(directory: Path, copy: Path) -> None:
    """Copy a store into a new directory, each sink as of one commit, while others write to it.

    Args:
        directory: The store.
        copy: The directory to create.

    Raises:
        ConfigError: `copy` exists.
        StoreError: The store cannot be read, is damaged, or is not a store; or `copy` cannot be
            written.
    """
    if copy.exists():
        raise ConfigError(f"{copy} exists; give the copy another name, or remove it before")
    with directory_errors(copy), _partial(copy) as partial:
        _copy(directory, partial)
        try:
            partial.rename(copy)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise ConfigError(f"{copy} exists; give the copy another name") from error
        sync(copy.parent)


def restore_parquet(copy: Path, directory: Path) -> list[Path]:
    """Replace a store by a copy, and put its former directory aside.

    Args:
        copy: A directory that `backup_parquet` made, or another copy of a store.
        directory: The store; it may be missing.

    Returns:
        The new path of the former directory; empty if there was none.

    Raises:
        ConfigError: Both are the same directory.
        StoreError: The copy cannot be read, is damaged, or is not a store; or the store cannot be
            replaced.
        StoreUnavailableError: A writer is active.
    """
    if directory.exists() and directory.samefile(copy):
        raise ConfigError(f"{copy} is the store itself; give the copy, then the store")
    aside: list[Path] = []
    with directory_errors(directory), _partial(directory) as partial:
        _copy(copy, partial)
        with _without_writers(directory):
            if directory.exists():
                at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
                aside.append(
                    directory.rename(directory.with_name(f"{directory.name}.replaced-{at}"))
                )
            partial.rename(directory)
            sync(directory.parent)
    return aside


def check_parquet(directory: Path) -> StoreReport:
    """Read a whole store, and report its content and its problems.

    Raises:
        StoreError: A manifest cannot be read.
    """
    report = StoreReport()
    with directory_errors(directory):
        for folder, sink_id in sinks_in(directory):
            for attempts in reversed(range(_READS)):
                manifest = Manifest.load(folder, sink_id)
                if manifest is None:
                    break
                rows, problems = _data_of(folder, manifest)
                epochs = _epochs_of(folder, manifest, problems)
                if not problems or not attempts or Manifest.load(folder, sink_id) == manifest:
                    _add_sink(report, manifest, rows, epochs)
                    report.problems += problems
                    break
        if not report.sinks:
            report.problems.append("it has no manifest of a sink: it is not a store of metrics")
    return report


def _copy(directory: Path, target: Path) -> None:
    """Copy all sinks, and check the copy."""
    target.mkdir()
    for folder, sink_id in sinks_in(directory):
        _copy_sink(folder, sink_id, target / folder.name)
    sync(target)
    report = check_parquet(target)
    if report.problems:
        raise StoreError(f"{directory} cannot be copied: {'; '.join(report.problems)}")


def _copy_sink(folder: Path, sink_id: str, target: Path) -> None:
    target.mkdir()
    for attempts in reversed(range(_READS)):
        manifest = Manifest.load(folder, sink_id)
        if manifest is None:
            return
        try:
            for name in manifest.live():
                if not (target / name).exists():
                    write_durably(target / name, (folder / name).read_bytes())
        except FileNotFoundError:
            if not attempts or Manifest.load(folder, sink_id) == manifest:
                raise
            continue
        manifest.replaced = {}
        manifest.replace(target)
        for name in written_files(target) - manifest.live():
            (target / name).unlink()
        return


def _data_of(folder: Path, manifest: Manifest) -> tuple[int, list[str]]:
    """Return the number of rows of a sink, and a problem for each file that cannot be read."""
    rows, problems = 0, []
    for name in sorted(manifest.data_files()):
        try:
            with (folder / name).open("rb") as file:
                # Read in this thread, because Arrow's threads may still hold the file at exit.
                parquet = pq.ParquetFile(file, pre_buffer=False)
                rows += parquet.read(use_threads=False).num_rows
        except Exception as error:  # Arrow raises its own, OSError and, for some damage, others
            problems.append(f"{folder / name} of sink {manifest.sink!r} cannot be read: {error}")
    return rows, problems


def _epochs_of(folder: Path, manifest: Manifest, problems: list[str]) -> list[Summary]:
    """Return the kept epochs of a sink; add to `problems` if they cannot be read."""
    try:
        return newest_epochs(folder, manifest)
    except (OSError, StoreError) as error:
        problems.append(f"the epochs of sink {manifest.sink!r} cannot be read: {error}")
        return []


def _add_sink(report: StoreReport, manifest: Manifest, rows: int, epochs: list[Summary]) -> None:
    sink_id = manifest.sink
    sink = report.sink(sink_id)
    sink.rows = rows
    if epochs:
        report.add_newest(sink_id, epochs[-1][2])
    newest: dict[tuple[str, str], int] = {}
    for query_id, batch_id, _ in epochs:
        newest[sink_id, query_id] = max(batch_id, newest.get((sink_id, query_id), batch_id))
    marks = {(sink_id, query_id): mark for query_id, mark in manifest.marks.items()}
    report.add_ledger(marks, newest)


@contextmanager
def _partial(directory: Path) -> Iterator[Path]:
    """Yield a name beside a directory for incomplete content, and remove that in the end."""
    partial = directory.with_name(f"{directory.name}.partial-{secrets.token_hex(4)}")
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _without_writers(directory: Path) -> Iterator[None]:
    """Hold the locks of all sinks.

    Raises:
        StoreUnavailableError: A writer holds one of them.
    """
    with ExitStack() as locks:
        for path in directory.glob("sink-*/lock"):
            try:
                locks.callback(unlock, acquire(path, 0, str(directory)))
            except StoreUnavailableError as error:
                raise StoreUnavailableError(
                    f"cannot restore {directory}: a writer of {path.parent.name} is active; stop "
                    "the programs that write to the store, and try again"
                ) from error
        yield
