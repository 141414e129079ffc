"""Checks that the switch of each rule still matches its place in the sources.

The sources have no switches: `make faults` edits a copy of them. `switches.diff` lists the edits,
and `rules.rs` joins the copy.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LISTING = Path(__file__).with_name("switches.diff")
RULES = Path(__file__).with_name("rules.rs")

LINKED = ("Cargo.toml", "Cargo.lock", "benches", "tests")
"""What Cargo needs in addition to the sources."""


class Row(NamedTuple):
    """An edit of one file.

    Attributes:
        file: Its path.
        rules: The rules that the edit is for.
        text: The lines that the edit replaces.
        with_switch: The lines with the switch.
    """

    file: str
    rules: tuple[str, ...]
    text: str
    with_switch: str


def rows(listing: str) -> Iterator[Row]:
    """Read the rows of a listing, as its beginning describes them.

    Raises:
        ValueError: A line begins with another character.
    """
    for part in re.split(r"^@@ ", listing, flags=re.MULTILINE)[1:]:
        header, *lines = part.splitlines()
        file, *rules = header.split()
        text = with_switch = ""
        for line in filter(None, lines):
            if line[0] not in " -+":
                raise ValueError(f"{header}: a line begins with neither ' ', '-' nor '+': {line}")
            text += "" if line[0] == "+" else f"{line[1:]}\n"
            with_switch += "" if line[0] == "-" else f"{line[1:]}\n"
        yield Row(file, tuple(rules), text, with_switch)


def switched(source: str, row: Row) -> str:
    """Return the source of the row's file with its edit.

    Raises:
        ValueError: The lines of the row are missing, or occur several times.
    """
    lines = re.compile(rf"^(?={re.escape(row.text)})", re.MULTILINE)
    places = [found.start() for found in lines.finditer(source)]
    if len(places) != 1:
        raise ValueError(
            f"{row.file} {' '.join(row.rules)}: these lines are {len(places)} times in the file, "
            f"and should be there once; write the row of {LISTING.name} anew:\n{row.text}"
        )
    before, after = source[: places[0]], source[places[0] + len(row.text) :]
    return f"{before}{row.with_switch}{after}"


def switched_sources() -> dict[str, str]:
    """Return the sources with all switches, by their paths."""
    paths = sorted(path for path in (ROOT / "src").rglob("*") if path.is_file())
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    for row in rows(LISTING.read_text()):
        sources[row.file] = switched(sources.get(row.file, ""), row)
    return {**sources, "src/rules.rs": RULES.read_text()}


def write_copy(folder: Path) -> None:
    """Write the crate with all switches; leave files that are up to date, for Cargo's sake."""
    sources = switched_sources()
    for path in (folder / "src").rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in sources:
            path.unlink()
    for name, source in sources.items():
        path = folder / name
        if not path.exists() or path.read_text() != source:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
    for name in LINKED:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(ROOT / name)


def main() -> int:
    """Print the error of the first row that does not fit."""
    try:
        switched_sources()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
