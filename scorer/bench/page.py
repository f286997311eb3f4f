"""A report as one HTML file that opens from disk: style and pictures inside, nothing fetched, no script. Pure.

A browser is told so as well (the policy in the head), so a mistake here would show as a hole in the page, not as a
request.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape

from scorer.bench.document import Block, Image, Items, Section, Table

__all__ = ["html"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; font: 16px/1.5 system-ui, sans-serif; color: #1c2024;
background: #fff; } h1 { font-size: 1.7rem; margin: 0 0 .5rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem;
padding-bottom: .2rem; border-bottom: 1px solid #d8dce0; } nav a { display: inline-block; margin: 0 .9rem .3rem 0;
color: #1f5f99; } .wide { overflow-x: auto; } table { border-collapse: collapse; margin: .6rem 0; font-size: .92rem;
font-variant-numeric: tabular-nums; } th, td { padding: .25rem .7rem; border-bottom: 1px solid #e6e8eb; text-align:
left; vertical-align: top; overflow-wrap: anywhere; } th { border-bottom-color: #9aa1a9; white-space: nowrap; } .numeric
th:not(:first-child), .numeric td:not(:first-child) { text-align: right; } tbody tr:hover { background: #f4f7fa; } img {
max-width: 100%; height: auto; } @media print { nav { display: none; } h2 { break-after: avoid; } table, img {
break-inside: avoid; } }
"""


def html(title: str, sections: Sequence[Section], images: Mapping[str, bytes]) -> str:
    """The whole page. ``images`` has the PNG of every :class:`Image` by its name."""
    named = [(f"s{index}", section) for index, section in enumerate(sections)]
    links = "".join(f'<a href="#{name}">{escape(section.title)}</a>' for name, section in named)
    body = "".join(
        f'<section id="{name}"><h2>{escape(section.title)}</h2>'
        + "".join(_block(block, images) for block in section.blocks)
        + "</section>\n"
        for name, section in named
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n<nav>{links}</nav>\n{body}</body></html>\n"
    )


def _block(block: Block, images: Mapping[str, bytes]) -> str:
    if isinstance(block, Image):
        data = base64.b64encode(images[block.name]).decode("ascii")
        return f'<p><img src="data:image/png;base64,{data}" alt="{escape(block.alt)}"></p>'
    if isinstance(block, Items):
        return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ul>"
    if isinstance(block, Table):
        head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in block.head)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in block.rows)
        kind = ' class="numeric"' if block.numeric else ""
        return f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return f"<p>{escape(block)}</p>"
