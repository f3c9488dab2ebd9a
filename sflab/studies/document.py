"""A document of headings, paragraphs, lists, tables and figures, as Markdown and as one HTML page.

The page stands alone: figures are in it as SVG, and it has no scripts and refers to nothing outside. In
texts, `this` is code.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Heading(NamedTuple):
    """A heading below the title, of level 2 or 3."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """A paragraph; a note is set apart because a reader must not miss it."""

    text: str
    note: bool = False


class Bullets(NamedTuple):
    """A list."""

    items: Sequence[str]


class Table(NamedTuple):
    """A table. Columns whose names begin with `<` are of words and set left, the others of numbers."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class Figure(NamedTuple):
    """A figure, also in the files `figures/NAME.svg` and `.png`."""

    name: str
    alt: str
    """Description for those who cannot see it."""
    caption: str
    svg: str


Block = Heading | Paragraph | Bullets | Table | Figure

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: #fff; color: #1b1b1b;
  font: 17px/1.55 Charter, "Bitstream Charter", "Iowan Old Style", Georgia, serif; }
h1, h2, h3, table, figcaption, caption, .note { font-family: system-ui, "Segoe UI", Verdana, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .75rem; padding-top: .75rem; border-top: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p, ul { max-width: 42rem; }
.note { border-left: 4px solid #0072b2; background: #f1f6fa; padding: .6rem .9rem; font-size: .9rem; }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; background: #f3f3f3; padding: .1em .25em;
  border-radius: .2em; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 1.25rem 0; }
table { border-collapse: collapse; font-size: .82rem; line-height: 1.35; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; color: #444; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 2px solid #777; vertical-align: bottom; white-space: normal; }
.words { text-align: left; white-space: normal; }
figure { margin: 1.5rem 0; }
figure svg { max-width: 100%; height: auto; display: block; }
figcaption { font-size: .82rem; color: #444; max-width: 48rem; margin-top: .4rem; }
nav ul { columns: 2; padding-left: 1.2rem; font-size: .92rem; }
a { color: #00588a; }
@media print { body { max-width: none; font-size: 11pt; } h2 { break-after: avoid; } figure, table {
break-inside: avoid; } }
"""


def markdown(title: str, blocks: Iterable[Block]) -> str:
    """Write a document as Markdown; figures are files beside it."""
    return "\n\n".join([f"# {title}", *(_markdown(block) for block in blocks)]) + "\n"


def page(title: str, blocks: Sequence[Block]) -> str:
    """Write a document as a page of HTML that refers to nothing outside."""
    chapters = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    contents = "".join(f'<li><a href="#{anchor(one)}">{_inline(one)}</a></li>' for one in chapters)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_inline(title)}</h1>\n<nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        + "\n".join(_html(block) for block in blocks)
        + "\n</main>\n</body>\n</html>\n"
    )


def anchor(text: str) -> str:
    """Return a heading's name within the page."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text, note):
            return f"> {text}" if note else text
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Table(caption, columns, rows):
            names = [name.removeprefix("<") for name in columns]
            rules = ["---" if name.startswith("<") else "--:" for name in columns]
            lines = (_pipes(cells) for cells in (names, rules, *rows))
            return f"{caption}\n\n" + "\n".join(lines)
        case Figure(name, alt, caption, _):
            return f"![{alt}](figures/{name}.svg)\n\n*{caption}*"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f'<h{level} id="{anchor(text)}">{_inline(text)}</h{level}>'
        case Paragraph(text, note):
            return f'<p class="note">{_inline(text)}</p>' if note else f"<p>{_inline(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Table():
            return _table(block)
        case Figure(_, alt, caption, svg):
            drawing = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" ', 1)
            return f"<figure>\n{drawing}\n<figcaption>{_inline(caption)}</figcaption>\n</figure>"


def _table(table: Table) -> str:
    kinds = [' class="words"' if name.startswith("<") else "" for name in table.columns]
    names = (name.removeprefix("<") for name in table.columns)
    head = "".join(
        f'<th scope="col"{kind}>{_inline(name)}</th>' for kind, name in zip(kinds, names, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_inline(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll"><table>\n<caption>{_inline(table.caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _inline(text: str) -> str:
    """Escape a text, and mark its code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
