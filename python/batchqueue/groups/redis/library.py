"""`Library`: the scripts, each one text with what it shares with others before it."""

import hashlib
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

_CONTROL = [
    "time",
    "join",
    "beat",
    "plan",
    "sync",
    "release",
    "resize",
    "leaving",
    "leave",
    "members",
]
_PARTITION = [
    "open",
    "commit",
    "set_aside",
    "position",
    "reset",
    "forget",
    "send_back",
    "trim",
    "add",
]
_STREAM = ["partitions", "enlarge"]


class Script(NamedTuple):
    """A script.

    Attributes:
        text: What the server runs.
        sha: By which the server knows it once it has run.
    """

    text: str
    sha: str


class ScriptCall(NamedTuple):
    """A script with what it takes.

    Attributes:
        script: The script.
        keys: All keys that it uses.
        arguments: The rest.
    """

    script: Script
    keys: tuple[str, ...]
    arguments: tuple[bytes | str | int | float, ...]


class Library:
    """The scripts, by the names of their files."""

    def __init__(self, clock: str | None = None) -> None:
        """Read nothing yet.

        Args:
            clock: The Lua function `clock_us`. Default: None, the time of the server.
        """
        self._clock = clock

    def __getitem__(self, name: str) -> Script:
        """Return a script."""
        return self._scripts[name]

    @cached_property
    def _scripts(self) -> dict[str, Script]:
        clock = _text("clock") if self._clock is None else self._clock
        control = [clock, _text("common"), _text("control")]
        partition = [clock, _text("common"), _text("partition")]
        parts = {name: [*control, _text(name)] for name in _CONTROL}
        parts |= {name: [*partition, _text(name)] for name in _PARTITION}
        parts |= {name: [_text(name)] for name in _STREAM}
        return {name: _script("\n".join(texts)) for name, texts in parts.items()}


def _text(name: str) -> str:
    return (files("batchqueue.groups.redis") / "scripts" / f"{name}.lua").read_text("utf8")


def _script(text: str) -> Script:
    # The server's own name of a script, not a safeguard.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


LIBRARY = Library()
"""The scripts as they are."""
