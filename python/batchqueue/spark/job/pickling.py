"""Finds in the driver what cannot be pickled for the workers."""

from dataclasses import fields
from typing import Any

from pyspark import cloudpickle

from batchqueue import ConfigError


def check_pickles(instance: Any, owner: str, place: str) -> None:
    """Check that every attribute of a dataclass can be pickled.

    Args:
        instance: The dataclass.
        owner: Follows the name of the attribute in the message, such as " of job 'shop'".
        place: Where to make what cannot be pickled, for the message.

    Raises:
        ConfigError: An attribute does not pickle; the message names it.
    """
    for attribute in fields(instance):
        try:
            cloudpickle.dumps(getattr(instance, attribute.name))  # type: ignore[no-untyped-call]
        # Pickling runs code of the objects, which may raise anything.
        except Exception as error:
            raise ConfigError(
                f"{attribute.name}{owner} cannot be pickled ({error}): make what it holds, such as "
                f"connections, locks and sessions, inside {place}"
            ) from error
