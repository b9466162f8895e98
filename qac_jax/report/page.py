"""One HTML page that stands alone: no scripts, no fonts, no network; light, dark, narrow, paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape


_STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5b6672; --ground: #ffffff;
  --sheet: #f5f7f9; --edge: #d8dee4; --shade: #00000040;
  --c0: #1f6fb4; --c1: #d9622b; --c2: #2f8f5b; --c3: #8d4fb0; --c4: #b8860b; --c5: #c03a5b;
  --c6: #3b8f97; --c7: #6b6f76; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --ground: #15191d;
  --sheet: #1e2429; --edge: #37404a; --shade: #000000c0;
  --c0: #63aef0; --c1: #f3905c; --c2: #62c98f; --c3: #c08be0; --c4: #e0b548; --c5: #f07c98;
  --c6: #6fcbd3; --c7: #a3a9b2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.2rem 1rem 3rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans",
  sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .2rem 0 .6rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; padding-bottom: .2rem;
  border-bottom: 2px solid var(--edge); }
h3 { font-size: 1.02rem; margin: 1.2rem 0 .4rem; }
h4 { font-size: .95rem; margin: .9rem 0 .3rem; color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .92rem; }
a { color: var(--c0); }
/* A shadow at the side where more columns are: it scrolls away with the cover at the end. */
.scroll { overflow-x: auto; margin: .4rem 0; background:
  linear-gradient(to right, var(--ground) 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--ground) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / .8rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / .8rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .65rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--edge); }
th { color: var(--soft); font-weight: 600; }
td.word, th.word { text-align: left; }
sup { color: var(--soft); font-size: .72em; }
.note { color: var(--soft); font-size: .88rem; margin: .3rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: .6rem 1.4rem; max-width: 62rem; }
figure { margin: .3rem 0; max-width: 34rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-size: 12px; fill: var(--soft); }
svg .name { fill: var(--ink); }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
.grid { stroke: var(--edge); stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.area { stroke-width: 1.6; fill-opacity: .16; stroke-linejoin: round; }
figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .85rem;
  padding-left: 2.6rem; }
figcaption i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem;
  margin-right: .35rem; vertical-align: -.05rem; }
COLOURS
.case { background: var(--sheet); border-radius: .5rem; padding: .55rem .8rem; margin: .45rem 0;
  font-size: .92rem; break-inside: avoid; }
.case p { margin: 0 0 .3rem; font-weight: 600; }
.case blockquote { margin: 0 0 .3rem; color: var(--soft); font-size: .9em; }
.case ul { margin: 0; padding-left: 1.1rem; }
.case dl { margin: 0; display: grid; grid-template-columns: minmax(6rem, max-content) 1fr;
  gap: .15rem .8rem; }
.case dt { color: var(--soft); }
.case dd { margin: 0; }
small { color: var(--soft); }
details { margin: .35rem 0; }
summary { cursor: pointer; color: var(--c0); }
pre { overflow-x: auto; background: var(--sheet); border-radius: .5rem; padding: .6rem .8rem;
  font-size: .8rem; line-height: 1.4; overflow-wrap: normal; }
@media (max-width: 34rem) { body { padding: .8rem .7rem 2rem; font-size: 15px; }
  .case dl { grid-template-columns: 1fr; gap: 0; } .case dd { margin-bottom: .3rem; }
  th, td { padding: .25rem .45rem; } }
@media print { :root { --ink: #000; --soft: #444; --ground: #fff; --sheet: #f4f4f4;
  --edge: #bbb; } nav { display: none; } body { font-size: 10.5pt; max-width: none; padding: 0; }
  figure, table, .case { break-inside: avoid; } h2, h3, h4 { break-after: avoid; }
  pre { white-space: pre-wrap; } .scroll { overflow: visible; } th, td { white-space: normal; } }
""".strip()


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """The whole page: (heading, HTML) one after the other, with links to each at the top."""
    colours = "\n".join(
        f".line.c{n} {{ stroke: var(--c{n}); }} .area.c{n} {{ stroke: var(--c{n}); fill: "
        f"var(--c{n}); }}\n.dot.c{n}, .bar.c{n} {{ fill: var(--c{n}); }} i.c{n} {{ background: "
        f"var(--c{n}); }}"
        for n in range(8)
    )
    names = [(name, re.sub(r"\W+", "-", name.lower())) for name, _ in sections]
    links = "".join(f'<a href="#{anchor}">{escape(name)}</a>' for name, anchor in names)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(name)}</h2>{text}</section>'
        for (name, anchor), (_, text) in zip(names, sections, strict=True)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.replace('COLOURS', colours)}\n</style>"
        f"</head>\n<body><h1>{escape(title)}</h1><nav>{links}</nav>\n{body}\n</body></html>\n"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, rich: bool = False) -> str:
    """Numbers to the right, words to the left. rich: `**best**` and ` ^marks` are shown as such."""
    words = [all(not _is_number(row[i]) for row in rows) for i in range(len(header))]

    def line(cells: Sequence[str], tag: str) -> str:
        shown = (_rich(cell) if rich and tag == "td" else escape(cell) for cell in cells)
        return "".join(
            f"<{tag}{' class=word' if word else ''}>{cell}</{tag}>"
            for cell, word in zip(shown, words, strict=True)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{line(header, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _is_number(cell: str) -> bool:
    return bool(re.match(r"[*<+\-−–]*\d", cell)) or cell == "–"


def _rich(cell: str) -> str:
    text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(cell))
    return re.sub(r" \^(\w+)$", r"<sup>\1</sup>", text)


def part(title: str, body: str) -> str:
    return f"<h3>{escape(title)}</h3>{body}"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def folded(title: str, body: str) -> str:
    """Shown when it is clicked on."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def side_by_side(figures: str) -> str:
    return f'<div class="plots">{figures}</div>' if figures else ""
