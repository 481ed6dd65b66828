"""What the pages of the documentation hold besides prose: blocks of code, and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("**/*.md")),
    "benchmarks/README.md",
    "client_examples/README.md",
)
# What a command of a block begins with, `$` aside.
PROGRAMS = (
    *("ge-backend", "make", "python", "python3", "pip", "pytest", "docker", "tritonserver"),
    *("source", "curl", "wget", "git", "kubectl", "helm", "conda", "apt", "export", "bash"),
)
COMMAND = re.compile(
    rf"(?:[A-Z][A-Z_0-9]*=\S+ +)*(?:{'|'.join(PROGRAMS)}|\.venv/bin/\S+|(?:[a-z]+/)+\w+\.sh)(?= |$)(?! \w+:)"
)
# In prose the bare name of a program is no command.
SPAN = re.compile(rf"`({COMMAND.pattern}[^`]+)`")
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n)+")


@dataclass(frozen=True)
class Block:
    """A block of code on a page.

    Attributes:
        page: its path below the repository's root.
        line: the number of its first line there.
        language: what a fence says; "" for none and for indented blocks.
        text: without fence and indentation.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command that a page tells its readers.

    Attributes:
        page: its path below the repository's root.
        line: its number there.
        text: without prompt, comment and `&`.
        shown: what the page says that it prints; "" where it does not say.
        block: whether it stands in a block; else it is named in prose, perhaps in part.
    """

    page: str
    line: int
    text: str
    shown: str = ""
    block: bool = True

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order."""
    text = (ROOT / page).read_text()
    found = [
        Block(page, _line(text, m.start()) + 1, m["language"], m["text"])
        for m in FENCE.finditer(text)
    ]
    prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    found += [
        Block(page, _line(prose, m.start()), "", re.sub(r"(?m)^ {4}", "", m[0]).rstrip() + "\n")
        for m in INDENTED.finditer(prose)
    ]
    return sorted(found, key=lambda block: block.line)


def commands(page: str) -> list[Command]:
    """Return the commands of a page: those of its blocks, then those named in its prose."""
    found = [command for block in blocks(page) for command in commands_in(block)]
    text = (ROOT / page).read_text()
    prose = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    prose = INDENTED.sub(lambda match: "\n" * match[0].count("\n"), prose)
    spans = (
        Command(page, _line(prose, match.start()), match[1], block=False)
        for match in SPAN.finditer(prose)
    )
    return [*found, *spans]


def commands_in(block: Block) -> Iterator[Command]:
    """Yield the commands of a block."""
    lines = block.text.splitlines()
    prompts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    if prompts:
        for begin, end in zip(prompts, [*prompts[1:], len(lines)], strict=True):
            shown = "\n".join(lines[begin + 1 : end])
            yield Command(block.page, block.line + begin, bare(lines[begin][2:]), shown)
        return
    for number, line in enumerate(lines):
        if COMMAND.match(line):
            yield Command(block.page, block.line + number, bare(line))


def bare(line: str) -> str:
    """Return a command without its comment and the `&` that sends it into the background."""
    return re.sub(r"\s+# .*$", "", line).strip().removesuffix("&").strip()


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
