"""Checks that each room of the core uses only the rooms below it.

A room is a module of `src/lib.rs`, and `LAYERS` lists them from the top down. Every path to another
module counts, in a `use` and in code, except those of tests; a name that a module imports counts as
that of the module that defines it. `python scripts/core_layers.py` prints the faults; with
`--circles` also which modules depend on each other.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from structure import CORE, code_of_rust, reached

LAYERS = (
    {"python"},
    {"queue", "arrow", "entries", "stages"},
    {"control"},
    {"flow"},
    {"threads"},
    {"observe"},
    {"balance", "item"},
    {"config"},
    {"error"},
    {"sync"},
)
"""The rooms of one layer do not use each other."""

Name = tuple[str, ...]
"""A Rust path; for a module, the path below `crate`."""

_FOR_TESTS = r"#\[cfg\((?:all\()?(?:test|loom)\b[^\n]*\]\s*(?:#\[[^\n]*\]\s*)*(?:pub\S*\s+)?"
_TEST_MODULE = re.compile(_FOR_TESTS + r"mod (\w+);")
_NO_USE = re.compile(_FOR_TESTS + r"use [^;]+;|\bpub\(in [^)]+\)")
_INNER_MODULE = re.compile(r"^(?:pub\S* )?mod \w+ \{$.*?^\}$", re.MULTILINE | re.DOTALL)
_USE = re.compile(r"^( *)(?:pub(?:\([^)]*\))? )?use\s+([^;]+);", re.MULTILINE)
_PATH = re.compile(r"\b(?:crate|super|self)(?:::\w+)+")


class Use(NamedTuple):
    """A path in a module to something else."""

    line: int
    path: Name
    name: str
    """Its name in the module; "" if it has that name in only a part of the module."""


def main() -> int:
    """Print the faults."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--circles", action="store_true", help="also print circles of modules")
    args = parser.parse_args()
    core = Core(CORE)
    found = list(faults(core, LAYERS))
    if args.circles:
        found += circles(core)
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


class Core:
    """The modules of the core, and the paths in each."""

    def __init__(self, folder: Path) -> None:
        """Read the modules.

        Args:
            folder: The folder that has `lib.rs`.
        """
        self.folder = folder
        paths = {module_of(path.relative_to(folder)): path for path in sorted(folder.rglob("*.rs"))}
        code = {module: code_of_rust(path) for module, path in paths.items()}
        tests = [(*at, name) for at, text in code.items() for name in _TEST_MODULE.findall(text)]
        self.paths = {
            module: path
            for module, path in paths.items()
            if not any(module[: len(test)] == test for test in tests)
        }
        self._uses = {module: sorted(set(uses_of(code[module]))) for module in self.paths}
        self._names = {
            module: {use.name: use.path for use in uses if use.name}
            for module, uses in self._uses.items()
        }

    def targets(self, module: Name) -> Iterator[tuple[int, Name]]:
        """Yield the line of each path in a module, and the other module that it leads to."""
        for use in self._uses[module]:
            target = self._resolved(module, use.path, frozenset())
            if target is not None and target != module:
                yield use.line, target

    def _resolved(
        self, module: Name, path: Name, passed: frozenset[tuple[Name, str]]
    ) -> Name | None:
        """Return the module that defines what a path names; None if it is not in the core."""
        starts: dict[str, Name] = {"crate": (), "self": module, "super": module[:-1]}
        first, *rest = path
        at = starts.get(first, (*module, first))
        if at not in self.paths:
            return None
        for number, name in enumerate(rest, 1):
            if name == "super":
                at = at[:-1]
            elif (*at, name) in self.paths:
                at = (*at, name)
            elif (at, name) not in passed and name in self._names[at]:
                path = (*self._names[at][name], *path[number + 1 :])
                return self._resolved(at, path, passed | {(at, name)}) or at
            else:
                break
        return at


def module_of(path: Path) -> Name:
    """Return the name of the module in a file."""
    *folders, last = path.with_suffix("").parts
    return tuple(folders) if last in ("lib", "mod") else (*folders, last)


def uses_of(code: str) -> Iterator[Use]:
    """Yield the paths in the code of a module."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    def in_outer_module(match: re.Match[str]) -> str:
        return re.sub(r"(?<!::)\bsuper::", "self::", match[0])

    code = _INNER_MODULE.sub(in_outer_module, _NO_USE.sub(blank, code))
    for match in _USE.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        for path, name in branches(" ".join(match[2].split())):
            yield Use(line, path, "" if match[1] else name)
    code = _USE.sub(blank, code)
    for match in _PATH.finditer(code):
        yield Use(code.count("\n", 0, match.start()) + 1, tuple(match[0].split("::")), "")


def branches(tree: str) -> Iterator[tuple[Name, str]]:
    """Yield the paths of a tree like `a::{b, c as d}`, and what each is called."""
    stem, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        *parents, last = path.split("::")
        if last in ("*", "self"):
            yield tuple(parents), alias
        else:
            yield (*parents, last), alias or last
        return
    depth, branch = 0, ""
    for letter in rest[:-1] + ",":
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            if branch.strip():
                yield from branches(stem + branch.strip())
            branch = ""
        else:
            branch += letter


def faults(core: Core, layers: Sequence[set[str]]) -> Iterator[str]:
    """Yield the uses of rooms that are not below, and the rooms without a layer."""
    level = {room: number for number, rooms in enumerate(layers) for room in rooms}
    for room in sorted({module[0] for module in core.paths if module} ^ set(level)):
        yield f"{room} is a layer and no room" if room in level else f"{room} is in no layer"
    for module, path in core.paths.items():
        for line, target in sorted(set(core.targets(module))):
            rooms = module[:1] + target[:1]
            if len(set(rooms)) == 2 and level.get(rooms[1], -1) <= level.get(rooms[0], -1):
                at = path.relative_to(core.folder.parent)
                yield f"{at}:{line}: {rooms[0]} uses {'::'.join(target)}, which is not below it"


def circles(core: Core) -> Iterator[str]:
    """Yield the groups of modules in which each reaches all others."""
    graph = {
        "::".join(module): {"::".join(target) for _, target in core.targets(module)}
        for module in core.paths
        if module
    }
    reach = {module: reached(graph, module) for module in graph}
    groups = {
        frozenset(other for other in reach[module] if module in reach[other]) for module in graph
    }
    for group in sorted(map(sorted, groups), key=len):
        if len(group) > 1:
            yield f"a circle of {len(group)} modules: {', '.join(group)}"


if __name__ == "__main__":
    sys.exit(main())
