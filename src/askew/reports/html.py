"""Pieces of a web page; whatever text comes in is escaped here."""

from __future__ import annotations

import base64
import hashlib
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources


def whole(title: str, header: str, body: str, footer: str, style: str = "") -> str:
    """A page by itself; its policy lets no script run but its own, and loads nothing."""
    files = resources.files("askew.reports") / "templates"
    script = (files / "report.js").read_text(encoding="utf-8")
    parts = {
        "title": escape(title),
        "style": style,
        "header": header,
        "body": body,
        "footer": footer,
        "script": script,
        "script_hash": "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
    # One pass, so that a name which looks like a placeholder is never filled in.
    head, *rest = (files / "report.html").read_text(encoding="utf-8").split("{{")
    return head + "".join(parts[part.partition("}}")[0]] + part.partition("}}")[2] for part in rest)


def th(text: str) -> str:
    """A row's name."""
    name = escape(text)
    return f'<th scope="row" data-v="{name}" title="{name}">{name}</th>'


def numbers_td(text: str, value: float | None = None) -> str:
    """Any text as a cell; sorted by the value, or by itself."""
    return f'<td data-v="{escape(text) if value is None else f"{value:.4f}"}">{escape(text)}</td>'


def number(value: float | None, digits: int = 2, *, heat: float | None = None) -> str:
    """A number as a cell, with its background between nothing (0) and full (100) where `heat` is given."""
    if value is None:
        return '<td data-v="">–</td>'
    shade = "" if heat is None else f' style="--v:{heat:.0f}"'
    return f'<td data-v="{value:.4f}"{shade}>{value:.{digits}f}</td>'


def cell_td(values: Sequence[float], after: str, paper: float | None, kind: str) -> str:
    """Mean ± spread over seeds, the paper's number below it."""
    beside = "" if paper is None else f'<span class="paper">{paper:.2f}</span>'
    if not values:
        return f'<td data-v="">–{beside}</td>'
    middle = statistics.fmean(values)
    off = f' <span class="pm">± {statistics.stdev(values):.2f}</span>' if len(values) > 1 else ""
    rest = f' <span class="pm">{escape(after.strip())}</span>' if after else ""
    said = '<span class="v">' if "below" not in kind else '<span class="v" title="below source-only">'
    return f'<td class="{kind}" data-v="{middle:.4f}">{said}{middle:.2f}</span>{off}{rest}{beside}</td>'


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table whose cells are made already; a click on a heading sorts it."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<table class="{f"sortable {kind}".strip()}"><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def scroll(content: str) -> str:
    """A box that scrolls sideways by itself where a screen is narrow."""
    return f'<div class="scroll" tabindex="0">{content}</div>'


def details(summary: str, beside: str, content: str) -> str:
    """Something to open; `content` is made already."""
    return f'<details><summary>{escape(summary)}<span class="n">{escape(beside)}</span></summary>{content}</details>'


def finding(code: str, what: str, why: str, remedy: str, where: Sequence[str]) -> str:
    """A coded remark: what was found, why it matters, what to do, and where."""
    items = "".join(f"<li>{escape(name)}</li>" for name in where)
    places = f"{len(where)} place" + ("" if len(where) == 1 else "s")
    return (
        f'<article class="check" id="{code}"><h3><code>{code}</code>{escape(what)}</h3>'
        f"<p>Why it matters: {escape(why)}</p><p>What to do: {escape(remedy)}</p>"
        f"<details><summary>{places}</summary><ul>{items}</ul></details></article>"
    )


def card(title: str, content: str) -> str:
    return f'<section class="card"><h4>{escape(title)}</h4>{content}</section>'


def legend(colours: Mapping[str, str]) -> str:
    """What each colour of a chart stands for."""
    items = "".join(f'<li><i style="background:var(--{colour})"></i>{escape(n)}</li>' for colour, n in colours.items())
    return f'<ul class="legend">{items}</ul>'


def tabs(panels: Mapping[str, str]) -> str:
    """One panel a name, behind tabs; without JavaScript all of them, one below the other."""
    buttons = "".join(
        f'<button type="button" role="tab" id="tab{i}" aria-controls="panel{i}">{escape(name)}</button>'
        for i, name in enumerate(panels)
    )
    sections = "".join(
        f'<section role="tabpanel" id="panel{i}" aria-labelledby="tab{i}">{content}</section>'
        for i, content in enumerate(panels.values())
    )
    return f'<div class="tabs" role="tablist" aria-label="Benchmarks">{buttons}</div>{sections}'
