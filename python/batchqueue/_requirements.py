"""Optional packages: checks for them, and the command that installs a missing package."""

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
        raise MissingPackageError(
            f"{user} needs {package} ({error}): {install_command(extra)}"
        ) from error


def install_command(extra: str) -> str:
    """Return the command that installs batchqueue with an extra.

    The distribution is named `batchqueue-rs`: `batchqueue` on the package index is another project.
    """
    return f"pip install 'batchqueue-rs[{extra}]'"
