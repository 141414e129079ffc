"""Checks the English of comments, docs, messages and test names: the table is in CONTRIBUTING.md.

Reads every file that git tracks. A line of the output is `path:line: found; what to say`; the exit
code is 1 if there are any. Text in backticks is quoted code and is not checked.
"""

import io
import re
import subprocess
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
WIDTH = 100

EXEMPT = {
    "tests/python/docs/test_prose.py": "quotes what the table avoids",
}

_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
_RUST = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*")
    |(?P<char>b?'(?:\\.[^']*|[^\\'])')
    |\bfn\s+(?P<function>\w+)
    |\b(?P<name>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_FENCED = re.compile(r"^ *```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_TARGET = re.compile(r"\]\([^)]*\)")


@dataclass(frozen=True)
class Rule:
    """A row of the table.

    Attributes:
        avoided: Matches the phrases to avoid.
        advice: What to say instead.
        allowed: Matches phrases in which an avoided one is allowed; None if there are none.
    """

    avoided: re.Pattern[str]
    advice: str
    allowed: re.Pattern[str] | None

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Yield each avoided phrase in `text` that is not part of an allowed one."""
        spans = [match.span() for match in self.allowed.finditer(text)] if self.allowed else []
        for match in self.avoided.finditer(text):
            if not any(begin <= match.start() and match.end() <= end for begin, end in spans):
                yield match


def rules(page: str) -> list[Rule]:
    """Read the table `avoid | say | right in` of the page."""
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|(.*?)\|$", page, re.MULTILINE)
    found = []
    for avoided, advice, allowed in rows:
        phrases = _phrases(avoided)
        assert phrases, f"{PAGE.name}: no phrase in backticks in the row {avoided!r}"
        found.append(Rule(phrases, advice.strip(), _phrases(allowed)))
    return found


def _phrases(cell: str) -> re.Pattern[str] | None:
    quoted = re.findall(r"`([^`]+)`", cell)
    if not quoted:
        return None
    # Not IGNORECASE: `is none` is prose and `is None` is code.
    both = (written for phrase in quoted for written in (phrase, phrase[0].upper() + phrase[1:]))
    alternatives = (r"\s+".join(map(re.escape, phrase.split())) for phrase in both)
    return re.compile(rf"\b(?:{'|'.join(alternatives)})\b")


def pieces(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file, as pairs of a line number and the text of that line."""
    match path.suffix:
        case ".py" | ".pyi":
            yield from _python(source)
        case ".rs" | ".java":
            yield from _rust(source)
        case ".md":
            yield from _lines(1, _FENCED.sub(lambda match: "\n" * match[0].count("\n"), source))
        case _:
            for number, line in enumerate(source.splitlines(), 1):
                if "#" in line:
                    yield number, line.partition("#")[2]


def _python(source: str) -> Iterator[tuple[int, str]]:
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.type in _STRINGS:
            yield from _lines(token.start[0], token.string)
        elif token.type == tokenize.NAME:
            if previous == "def":
                yield token.start[0], token.string.replace("_", " ")
            elif token.string == "one":
                yield token.start[0], "`one` as a name"
            previous = token.string


def _rust(source: str) -> Iterator[tuple[int, str]]:
    for match in _RUST.finditer(source):
        number = source.count("\n", 0, match.start()) + 1
        if match["comment"] or match["string"]:
            yield from _lines(number, match[0])
        elif match["function"]:
            yield number, match["function"].replace("_", " ")
        elif match["name"] == "one":
            yield number, "`one` as a name"


def _lines(first: int, text: str) -> Iterator[tuple[int, str]]:
    yield from enumerate(
        (re.sub(r"^\s*(?://[/!]?|#|\*)", "", line) for line in text.split("\n")), first
    )


def faults(path: Path, source: str, table: list[Rule]) -> Iterator[tuple[int, str]]:
    """Yield the faults in a file's prose, as pairs of a line number and a message."""
    prose = list(pieces(path, source))
    for number, text in prose:
        if text == "`one` as a name":
            yield number, '"one" as a name; say what it is: item, partition, step'
    # A phrase may be broken across two lines: the prose is searched as a whole, not line by line.
    starts = list(accumulate((len(text) + 1 for _, text in prose), initial=0))
    joined = "\n".join(text for _, text in prose)
    blank = _TARGET.sub(lambda match: "]" + " " * (len(match[0]) - 1), _CODE.sub(_blanked, joined))
    for rule in table:
        for match in rule.matches(blank):
            number = prose[bisect_right(starts, match.start()) - 1][0]
            yield number, f'"{" ".join(match[0].split())}"; say {rule.advice}'
    if path.name == "Makefile":
        return  # the help of a target is on the target's line
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > WIDTH and " " in line.strip()[:WIDTH] and not line.lstrip().startswith("|"):
            yield number, f"{len(line)} columns; end lines at {WIDTH}"


def _blanked(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "\0", match[0])


def tracked() -> Iterator[Path]:
    """Yield the files whose prose is checked."""
    kinds = ("*.py", "*.pyi", "*.rs", "*.java", "*.md", "*.sh", "*.toml", "Makefile", ".ci/run")
    command = ["git", "ls-files", "-z", *kinds]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        if name and name not in EXEMPT and (ROOT / name).is_file():
            yield Path(name)


def main(names: list[str]) -> int:
    """Check the files under `names`, all by default; print the faults, and return the exit code."""
    page = PAGE.read_text()
    table = rules(page)
    count = 0
    for path in tracked():
        if names and not any(path.is_relative_to(name) for name in names):
            continue
        source = (ROOT / path).read_text()
        if path.name == PAGE.name:
            source = re.sub(r"^\| `.*$", "", source, flags=re.MULTILINE)
        for number, message in sorted(faults(path, source, table)):
            print(f"{path}:{number}: {message}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
