"""Finds out on the driver what cannot travel to the workers."""

from dataclasses import fields
from typing import Any

from pyspark import cloudpickle

from batchqueue import ConfigError


def check_pickles(described: Any, owner: str, place: str) -> None:
    """Make sure that all attributes of a dataclass can travel.

    Args:
        described: The dataclass.
        owner: Follows the name of the attribute in the message, such as " of job 'shop'".
        place: Where to make what does not travel.

    Raises:
        ConfigError: An attribute does not pickle; the message names it.
    """
    for attribute in fields(described):
        try:
            cloudpickle.dumps(getattr(described, attribute.name))  # type: ignore[no-untyped-call]
        except (
            Exception
        ) as error:  # pickling runs the code of what is in there, which may raise anything
            raise ConfigError(
                f"{attribute.name}{owner} cannot be pickled ({error}): make what it holds, such as connections, locks "
                f"and sessions, inside {place}"
            ) from error
