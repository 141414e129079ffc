"""The store that a command is about: a file, a directory, or a database server."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from batchqueue._paths import local_path
from batchqueue.exceptions import ConfigError

if TYPE_CHECKING:
    from batchqueue.outputs import IcebergStore, ParquetStore, PostgresStore, SqliteStore

    Store = SqliteStore | ParquetStore | PostgresStore | IcebergStore

SQLITE, PARQUET, POSTGRES, ICEBERG = "sqlite", "parquet", "postgres", "iceberg"

_ICEBERG_PREFIX = "iceberg://"

_ELSEWHERE = "copy to or from a local file, and move the copy with the tools of that place"

FILES_HELP = "the file of a SqliteStore or the directory of a ParquetStore"
STORE_HELP = (
    "the file of a SqliteStore; the directory of a ParquetStore; the connection string of a "
    "PostgresStore, postgresql://USER@HOST/DATABASE, whose password is better in ~/.pgpass; or "
    "iceberg://CATALOG/NAMESPACE for an IcebergStore, with a catalog of pyiceberg's configuration"
)


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a store, also one in a database."""
    parser.add_argument("store", metavar="STORE", help=STORE_HELP)
    parser.add_argument(
        "--schema", default="public", metavar="NAME", help="of a PostgresStore (default: public)"
    )


def add_sink(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a sink."""
    parser.add_argument("sink", metavar="SINK", help="a sink of `store ls`")


def check_sink(store: "Store", arguments: argparse.Namespace) -> None:
    """Reject a sink that the store does not have.

    Raises:
        ConfigError: It does not have it.
        StoreError: It cannot be read.
    """
    known = store.sinks()
    if arguments.sink not in known:
        raise ConfigError(
            f"{arguments.store} has no sink {arguments.sink!r}; it has {', '.join(known) or 'none'}"
        )


def open_store(arguments: argparse.Namespace) -> "Store":
    """Return the store that these arguments name.

    Raises:
        ConfigError: There is no such file or directory.
        MissingPackageError: What the kind of store needs is not installed.
    """
    kind = kind_of(arguments.store)
    if kind == POSTGRES:
        from batchqueue.outputs import PostgresStore

        return PostgresStore(arguments.store, schema=arguments.schema)
    if kind == ICEBERG:
        return open_iceberg(arguments)
    if kind == PARQUET:
        from batchqueue.outputs import ParquetStore

        return ParquetStore(absolute(arguments.store))
    from batchqueue.outputs import SqliteStore

    return SqliteStore(absolute(arguments.store))


def open_iceberg(arguments: argparse.Namespace) -> "IcebergStore":
    """Return the store of an Iceberg catalog that these arguments name.

    Raises:
        ConfigError: They name no namespace.
        MissingPackageError: pyiceberg is not installed.
    """
    from batchqueue.outputs import IcebergStore

    catalog, _, namespace = arguments.store.removeprefix(_ICEBERG_PREFIX).partition("/")
    return IcebergStore(namespace, catalog=catalog or None, partition_s=None)


def kind_of(store: str) -> str:
    """Return the kind of store that an argument names.

    Raises:
        ConfigError: There is no such file or directory.
    """
    path = Path(store).expanduser()
    if store.startswith(_ICEBERG_PREFIX):
        return ICEBERG
    if path.is_dir():
        return PARQUET
    if path.exists():
        return SQLITE
    if is_server(store):
        return POSTGRES
    raise ConfigError(
        f"{store} does not exist; give the file of a SqliteStore, the directory of a "
        "ParquetStore, postgresql://USER@HOST/DATABASE, or iceberg://CATALOG/NAMESPACE"
    )


def is_server(store: str) -> bool:
    """Return whether an argument is the connection string of a PostgreSQL server."""
    return store.startswith(("postgresql://", "postgres://")) or "=" in store


def refuse_server(store: str, remedy: str) -> None:
    """Refuse what has its own copies: a PostgreSQL server, and the snapshots of Iceberg tables.

    Raises:
        ConfigError: It is one. Its text is left out of the message: it may hold a password.
    """
    if store.startswith(_ICEBERG_PREFIX):
        raise ConfigError(
            "an Iceberg table keeps its earlier states as snapshots, with the ledger of each: roll "
            "it back to one, or copy the warehouse and the catalog together"
        )
    if is_server(store) and not Path(store).exists():
        raise ConfigError(f"a PostgreSQL server copies its tables itself: {remedy}")


def absolute(path: str) -> Path:
    """Return the file or directory that an argument names, or that it links to.

    Raises:
        ConfigError: It is not a path of this machine.
    """
    return local_path("the argument", path, _ELSEWHERE).resolve()
