"""Names the command that installs what is missing, where a class needs an optional package."""

from importlib import import_module

from batchqueue.exceptions import MissingPackageError


def require(module: str, user: str, extra: str) -> None:
    """Check that a module of an optional package can be imported.

    Args:
        module: Its full name.
        user: The class or function that needs it.
        extra: The extra of batchqueue that brings the package.

    Raises:
        MissingPackageError: The module cannot be imported.
    """
    try:
        import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingPackageError(f"{user} needs {package} ({error}): {install(extra)}") from error


def install(extra: str) -> str:
    """Return the command that installs batchqueue with an extra."""
    return f"pip install 'batchqueue[{extra}]'"
