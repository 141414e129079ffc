"""The snapshot of a chain: the states of its operators, with their names, in one piece of bytes."""

import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from batchqueue.pipeline.errors import CutError

_VERSION = 1
_FORMAT = "batchqueue.chain"


def packed(names: Sequence[str], states: Sequence[bytes]) -> bytes:
    """Return the states of operators as bytes: a line of JSON, and the states behind it."""
    operators = [[name, len(state)] for name, state in zip(names, states, strict=True)]
    header = {"format": _FORMAT, "version": _VERSION, "operators": operators}
    return b"".join([json.dumps(header).encode(), b"\n", *states])


def unpacked(names: Sequence[str], data: bytes) -> list[bytes]:
    """Return the states again.

    Args:
        names: The operators that want their states.
        data: What `packed` returned.

    Raises:
        CutError: `data` was not made by `packed`, is damaged, has another version, or belongs to
            other operators.
    """
    line, _, rest = data.partition(b"\n")
    try:
        header = json.loads(line)
        if header["format"] != _FORMAT:
            raise ValueError(header["format"])
        version = header["version"]
        found, sizes = _operators(header) if version == _VERSION else ([], [])
    except (ValueError, TypeError, KeyError) as error:
        raise _damaged(data) from error
    if version != _VERSION:
        raise CutError(
            f"the snapshot has version {version}, and this batchqueue reads version {_VERSION}; "
            "install the batchqueue that wrote it, or start with another checkpoint directory"
        )
    if found != list(names):
        raise CutError(
            f"the snapshot belongs to the operators {_listed(found)}, and the operators with state "
            f"are now {_listed(names)}; restore the graph, or start with another checkpoint "
            "directory"
        )
    ends = list(accumulate(sizes, initial=0))
    if ends[-1] != len(rest):
        raise _damaged(data)
    return [rest[start:end] for start, end in pairwise(ends)]


def _operators(header: dict[str, Any]) -> tuple[list[str], list[int]]:
    names, sizes = [], []
    for name, size in header["operators"]:
        if not isinstance(name, str) or not isinstance(size, int) or size < 0:
            raise ValueError(name, size)
        names.append(name)
        sizes.append(size)
    return names, sizes


def _damaged(data: bytes) -> CutError:
    return CutError(
        f"{len(data)} bytes that begin with {data[:40]!r} are not the snapshot of a chain, or a "
        "part of it is missing; start with another checkpoint directory"
    )


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]"
