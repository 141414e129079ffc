"""Counts what a reader of the code meets: files, lines of code, names, circles, and reach.

Lines of code exclude blanks, comments and docstrings. A file counts as small if it has fewer than
60 of them and no reason for it: it is neither a contents page nor in `REASONS`. A room is a folder
of the package; circles of rooms include the imports for type checkers and those inside functions.
`python scripts/structure.py` prints a table.
"""

import argparse
import ast
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "batchqueue"
CORE = ROOT / "src"
SMALL = 60
CONTENTS = {"__init__.py", "__main__.py", "mod.rs"}
REASONS = {
    "base/files.py": "locks between processes",
    "base/iceberg_catalog.py": "needs an optional package",
    "base/process.py": "runs before the core is imported",
    "exporters/postgres_connection.py": "needs an optional package",
    "groups/kafka/inbox.py": "a protocol between threads",
    "base/words.py": "the lowest layer: errors use it, and the rest of the base uses errors",
    "pipeline/requirements.py": "runs before the imports that it explains",
    "spark/driver/registration.py": "can be imported with every pyspark",
    "spark/driver/stream_writer.py": "needs Spark 4.1",
    "spark/requirements.py": "runs before the imports that it explains",
    "control/handoff.rs": "a protocol between threads",
    "flow/ownership.rs": "a protocol between threads",
    "flow/route/owner.rs": "the word of a protocol between threads",
    "sync/quick.rs": "compiled without loom only",
    "lib.rs": "a contents page",
}
"""Why some files are small."""
ENTRIES = {
    "Worker": "batchqueue.groups.worker.worker",
    "PipelineRun": "batchqueue.pipeline.runner.run",
    "MetricsWriter": "batchqueue.spark.driver.metrics_writer",
}
"""The modules whose reach is counted, by the class that a user calls."""

_RUST_TESTS = re.compile(
    r"^#\[cfg\((?:all\()?(?:test|loom)\b[^\n]*\]\n(?:#\[[^\n]*\]\n)*mod \w+ \{.*",
    re.DOTALL | re.MULTILINE,
)
"""From the first module of tests to the end of a file."""

_RUST_TOKENS = re.compile(
    r'r(?P<hashes>#*)".*?"(?P=hashes)|"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\'\\])\'|//[^\n]*|/\*.*?\*/',
    re.DOTALL,
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="also name the files and classes")
    args = parser.parse_args()
    python = {path: lines_of_python(path) for path in sorted(PACKAGE.rglob("*.py"))}
    rust = {path: lines_of_rust(path) for path in sorted(CORE.rglob("*.rs"))}
    small = [
        f"{path.relative_to(ROOT)} ({lines})"
        for path, lines in (python | rust).items()
        if lines < SMALL and not is_test(path) and not has_reason(path)
    ]
    names = Counter(name for path in python for name in classes(path))
    twice = sorted(name for name, count in names.items() if count > 1)
    imports = {module_of(path): set(imported(path)) for path in python}
    graph = {module: found & set(imports) for module, found in imports.items()}
    circles = circles_of(rooms_of(graph))
    rows = [
        ("production files, Python / Rust", f"{len(python)} / {len(rust)}"),
        ("production lines of code", f"{sum(python.values()) + sum(rust.values()):,}"),
        ("the same, Python / Rust", f"{sum(python.values()):,} / {sum(rust.values()):,}"),
        (f"files under {SMALL} lines of code without a reason", len(small)),
        ("class names that occur twice", len(twice)),
        ("circles of rooms", len(circles)),
        *(
            (f"files reached from {name}", len(reached(graph, module)))
            for name, module in ENTRIES.items()
            if module in graph
        ),
    ]
    for what, count in rows:
        print(f"| {what} | {count} |")
    if args.list:
        print("", *small, *twice, *map(" <-> ".join, circles), sep="\n")


def lines_of_python(path: Path) -> int:
    """Return the number of lines that have code."""
    source = path.read_text(encoding="utf-8")
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def has_reason(path: Path) -> bool:
    """Return whether a file has a reason to be small."""
    return path.name in CONTENTS or any(str(path).endswith(f"/{file}") for file in REASONS)


def is_test(path: Path) -> bool:
    """Return whether a file of the core has only tests or their support code."""
    for_tests = "tests" in path.stem or path.stem in {"loom_rules", "simulation"}
    return for_tests or "testing" in path.parts


def lines_of_rust(path: Path) -> int:
    """Return the number of lines that have code, without those of tests."""
    return sum(bool(line.strip()) for line in code_of_rust(path).splitlines())


def code_of_rust(path: Path) -> str:
    """Return the code of a file without comments and tests; lines keep their numbers."""

    def without_comment(token: re.Match[str]) -> str:
        text = token[0]
        return "\n" * text.count("\n") if text.startswith(("//", "/*")) else text

    if is_test(path):
        return ""
    return _RUST_TOKENS.sub(without_comment, _RUST_TESTS.sub("", path.read_text(encoding="utf-8")))


def classes(path: Path) -> Iterator[str]:
    """Yield the names of the classes of a module, without a leading underscore."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name.lstrip("_")


def module_of(path: Path) -> str:
    """Return the name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """Yield the names of everything that a module imports, at the top or anywhere else.

    `from package import module` counts as an import of the module, not of the package.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if is_module(name) else node.module for name in names)


def is_module(name: str) -> bool:
    """Return whether a name of the package is a module; a Rust module is found by its stub."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    return any(path.with_suffix(ending).exists() for ending in ("", ".py", ".pyi"))


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return which rooms import from which others; the package itself is not a room."""
    rooms: dict[str, set[str]] = {}
    for module, found in graph.items():
        inside = room_of(module)
        rooms.setdefault(inside, set()).update(map(room_of, found))
    return {room: others - {room, ""} for room, others in rooms.items() if room}


def room_of(module: str) -> str:
    """Return the folder right below the package that a module is in; "" if it is in no folder."""
    parts = module.split(".")
    is_folder = (PACKAGE / parts[1]).is_dir() if len(parts) > 1 else False
    return parts[1] if is_folder else ""


def circles_of(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the pairs of nodes that reach each other."""
    reach = {node: reached(graph, node) for node in graph}
    pairs = itertools.combinations(sorted(graph), 2)
    return [(left, right) for left, right in pairs if right in reach[left] and left in reach[right]]


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the nodes that are reached from a node, including the node."""
    found, waiting = {start}, [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    main()
