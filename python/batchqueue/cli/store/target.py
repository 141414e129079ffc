"""The store that a command is about: a file, a directory, or a database server."""

from pathlib import Path

from batchqueue.exceptions import ConfigError

SQLITE, PARQUET, POSTGRES = "sqlite", "parquet", "postgres"

STORE_HELP = (
    "the file of a SqliteStore, the directory of a ParquetStore, or the connection string of a "
    "PostgresStore: postgresql://USER@HOST/DATABASE; its password is better in ~/.pgpass"
)


def kind_of(store: str) -> str:
    """Return the kind of store that an argument names.

    Raises:
        ConfigError: There is no such file or directory.
    """
    path = Path(store)
    if path.is_dir():
        return PARQUET
    if path.exists():
        return SQLITE
    if is_server(store):
        return POSTGRES
    raise ConfigError(
        f"{store} does not exist; give the file of a SqliteStore, the directory of a "
        "ParquetStore, or postgresql://USER@HOST/DATABASE"
    )


def is_server(store: str) -> bool:
    """Return whether an argument is the connection string of a PostgreSQL server."""
    return store.startswith(("postgresql://", "postgres://")) or "=" in store


def refuse_server(store: str, remedy: str) -> None:
    """Refuse a PostgreSQL server: `pg_dump` and `pg_restore` copy it.

    Raises:
        ConfigError: It is one. Its text is left out of the message: it may hold a password.
    """
    if is_server(store) and not Path(store).exists():
        raise ConfigError(f"a PostgreSQL server copies its tables itself: {remedy}")


def absolute(path: str) -> Path:
    """Return the file or directory that an argument names, or that it links to."""
    return Path(path).expanduser().resolve()
