"""A report as data, so that its Markdown and its HTML say the same: sections of paragraphs, tables and images. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Block",
    "Image",
    "Items",
    "Section",
    "Table",
    "clip",
    "decimals",
    "leaves",
    "markdown",
    "milliseconds",
    "percent",
]

#: Characters of an id or label that a report shows, and of a setting.
_SHOWN, _VALUE = 80, 200
_MARKDOWN = str.maketrans({**{c: "\\" + c for c in "\\`*[]|~"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"})
#: Names in a manifest whose values are never shown, should one ever get there.
_SECRET = re.compile(r"api_?key|authorization|passw|secret|bearer|(^|_)token$", re.IGNORECASE)
#: Inside a word an underscore is no markup, and ids are full of them.
_UNDERSCORE = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


@dataclass(frozen=True)
class Table:
    """A head and rows of cells, all plain text; every row is as long as the head. Columns after the first are numbers
    where ``numeric``, and stand to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = True


@dataclass(frozen=True)
class Image:
    """A PNG beside the report, by file name, and what it shows in words."""

    name: str
    alt: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    lines: tuple[str, ...]


Block = str | Table | Image | Items


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it; a ``str`` is a paragraph."""

    title: str
    blocks: list[Block] = field(default_factory=list)


def clip(text: str, length: int = _SHOWN) -> str:
    """``text`` on one line, at most ``length`` characters, without characters that a terminal or browser would obey."""
    clean = "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text[: length + 1])
    return clean if len(clean) <= length else clean[: length - 1] + "…"


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a manifest or fingerprint by dotted name, both clipped. Long lists are counted, not shown; nulls,
    empty lists and names that say a secret are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not _SECRET.search(str(key)):
                yield from leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 10:
            yield clip(name), f"{len(value)} entries"
        elif any(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                yield from leaves(item, f"{name}.{index}")
        elif value:
            yield clip(name), clip(", ".join(map(str, value)), _VALUE)
    elif value is not None:
        yield clip(name), clip(str(value), _VALUE)


def percent(share: float | None) -> str:
    """0.875 as ``87.5 %``; a dash for nothing."""
    return "–" if share is None else f"{100.0 * share:.1f} %"


def decimals(value: float | None, places: int = 4) -> str:
    """A number to ``places`` decimals; a dash for nothing."""
    return "–" if value is None else f"{value:.{places}f}"


def milliseconds(value: float | None) -> str:
    """A time in ms with three significant digits or more."""
    return "–" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The report in GitHub's Markdown; images by relative name. Nothing in a cell or paragraph is taken for markup."""
    out = [f"# {_escape(title)}"]
    for section in sections:
        out.append(f"## {_escape(section.title)}")
        out.extend(_block(block) for block in section.blocks)
    return "\n\n".join(out) + "\n"


def _escape(text: str) -> str:
    return _UNDERSCORE.sub(r"\\_", text.translate(_MARKDOWN))


def _block(block: Block) -> str:
    if isinstance(block, Image):
        return f"![{_escape(block.alt)}]({block.name})"
    if isinstance(block, Items):
        return "\n".join(f"- {_escape(line)}" for line in block.lines)
    if isinstance(block, Table):
        right = "---:" if block.numeric else "---"
        head, *rows = [tuple(map(_escape, row)) for row in (block.head, *block.rows)]
        rule = ("---", *(right for _ in head[1:]))
        return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *rows])
    return _escape(block)
