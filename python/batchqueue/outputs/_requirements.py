"""Says in one sentence what to install where the package of a store is missing; SQLite needs none."""

from importlib import import_module

from batchqueue.exceptions import MissingPackageError


def require(package: str, store: str, extra: str) -> None:
    """Make sure that a package can be imported.

    Args:
        package: Its name.
        store: The class that needs it.
        extra: The extra of batchqueue that brings it.

    Raises:
        MissingPackageError: It cannot.
    """
    try:
        import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{store} needs {package} ({error}): pip install 'batchqueue[{extra}]'"
        ) from error
