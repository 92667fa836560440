"""One self-contained page about a folder of runs: tables, checks, classes, mixes, curves, settings.

Every name on it goes through `html.escape`; and the page's policy lets no script run but its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from askew import __version__
from askew.core.errors import UserError
from askew.data.label_distribution import LabelDistributions
from askew.evaluation.metrics import mean
from askew.reports import svg
from askew.reports.features import task_of
from askew.reports.findings import Check, checks, mixes, place, unfinished_runs
from askew.reports.html import (
    card,
    cell_td,
    details,
    finding,
    legend,
    number,
    numbers_td,
    scroll,
    table,
    tabs,
    th,
    whole,
)
from askew.reports.paper import paper_numbers
from askew.reports.paper_table import Layout, Line, layouts, reading_order
from askew.reports.results import Row, cell, collect, flat, printed, spread
from askew.runs.store import RunFolder, finished_runs


def make_report(root: Path, data: Path | None = None) -> str:
    """The whole page, as text."""
    folders = finished_runs(root)
    if not folders:
        raise UserError(f"The folder {root} holds no finished run yet.", "`askew bench` makes some.")
    rows = reading_order(collect(folders))
    unfinished = unfinished_runs(root)
    benchmarks = list(dict.fromkeys(row.task.partition("/")[0] for row in rows))
    panels = {name: _benchmark([r for r in rows if r.task.partition("/")[0] == name], data) for name in benchmarks}
    found = checks(rows, unfinished)
    body = _checks(found) + tabs(panels)
    footer = (
        f"Written by askew {escape(__version__)} from {len(folders)} run folders; nothing on this page is "
        "loaded from anywhere else."
    )
    header = _header(rows, len(folders), len(unfinished), benchmarks)
    return whole(f"askew: {', '.join(benchmarks)}", header, body, footer)


def _header(rows: Sequence[Row], runs: int, unfinished: int, benchmarks: Sequence[str]) -> str:
    facts = {
        "finished run": runs,
        "unfinished run": unfinished,
        "task": len({row.task for row in rows}),
        "method": len({row.method for row in rows}),
        "seed": max(len(row.seeds) for row in rows),
    }
    items = "".join(f"<li><b>{value:,}</b> {name}{'' if value == 1 else 's'}</li>" for name, value in facts.items())
    return (
        f"<h1>{escape(', '.join(benchmarks))}</h1><p class='lead'>Class-imbalanced domain adaptation: per-class mean "
        f"accuracy on the target, after the last round.</p><ul class='facts'>{items}</ul>"
    )


def _checks(found: Sequence[Check]) -> str:
    parts = [finding(c.code, c.what, c.why, c.remedy, c.where) for c in found]
    if not found:
        parts.append('<article class="check fine"><h3>No remarks</h3><p>All checks passed.</p></article>')
    return f'<section aria-labelledby="checks"><h2 id="checks">Checks</h2>{"".join(parts)}</section>'


def _benchmark(rows: Sequence[Row], data: Path | None) -> str:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, str(row.run["shift"])), []).append(row)
    titles = {key: f"{key[0]}, {key[1]}" for key in groups}
    parts = ["<h2>Results</h2>", *(_results(layout) for layout in layouts(rows))]
    parts += ["<h2>All numbers</h2>", _all_numbers(rows)]
    parts += ["<h2>Accuracy by class</h2>", *(_by_class(titles[key], group) for key, group in groups.items())]
    parts += ["<h2>Class mix</h2>", *(_mix(titles[key], group, data) for key, group in groups.items())]
    parts += ["<h2>Training</h2>", *(_curves(titles[key], group) for key, group in groups.items())]
    parts += ["<h2>Settings</h2>", *(_settings(row) for row in rows)]
    return "".join(parts)


# --- results ---


def _results(layout: Layout) -> str:
    """The paper's layout; a number below source-only of the same variant is marked."""
    reference = {line.variant: line for line in layout.lines if line.method == "source"}
    head = ["method", *layout.columns]
    if layout.has_average:
        head += ["average", *(["paper, same tasks"] * layout.has_paper), *(["paper, printed"] * layout.has_printed)]
    lines = []
    for line in layout.lines:
        cells = [th(line.label)]
        for i, c in enumerate(line.cells):
            fewer = f" n={len(c.values)}" if c.values and len(c.values) < layout.usual_n else ""
            mark = _mark(layout, reference.get(line.variant), line, i)
            cells.append(cell_td(c.values, fewer, None if c.paper is None else c.paper[0], mark))
        if layout.has_average:
            cells.append(cell_td(line.averages, "", None, _mark(layout, reference.get(line.variant), line, None)))
            cells += [number(line.paper_average)] * layout.has_paper
            cells += [number(line.printed)] * layout.has_printed
        lines.append(cells)
    below = any("below" in cells for line in lines for cells in line)
    # Here the paper's numbers stand below ours, with their name.
    said = [remark.replace(" In brackets: the paper.", "") for remark in layout.summary()]
    remarks = [*said, *["▾: below source-only of the same variant."] * below]
    remarks += [f"Note: {note}." for note in layout.notes]
    text = "".join(f'<p class="note">{escape(remark)}</p>' for remark in remarks)
    return scroll(table(layout.title, head, lines)) + _dots(layout) + text


def _mark(layout: Layout, reference: Line | None, line: Line, column: int | None) -> str:
    score = line.score(column)
    kinds = []
    if score is not None and score == layout.best(column):
        kinds.append("best")
    base = None if reference is None else reference.score(column)
    if score is not None and base is not None and score < base:
        kinds.append("below")
    return " ".join(kinds)


def _dots(layout: Layout) -> str:
    """The averages as a picture, or the only column; over degrees, a curve a method."""
    if not layout.averaged:
        ours, paper_too = layout.degree_points()
        text = "Accuracy against the degree of label shift (1: RS-UT)." + " Rings: the paper." * bool(paper_too)
        drawing = svg.curves(ours, paper_too, f"{layout.title}: accuracy by method")
        return f'<div class="drawing">{drawing}</div><p class="note">{text}</p>'
    column = 0 if len(layout.columns) == 1 else None
    if column is None and not layout.has_average:
        return ""
    shown = []
    for line in layout.lines:
        values = line.averages if column is None else line.cells[column].values
        only = line.cells[0].paper
        paper = line.paper_average if column is None else None if only is None else only[0]
        if values or paper is not None:
            shown.append((line.label, mean(values) if values else None, spread(values), paper))
    source = next((line.score(column) for line in layout.lines if line.label == "source"), None)
    what = "average over tasks" if column is None else layout.columns[0]
    keys = {"c0": f"{what}, with spread"} | ({"c1": "paper"} if any(row[3] is not None for row in shown) else {})
    drawing = svg.dots(shown, source, f"{layout.title}: {what} by method")
    return f'{legend(keys)}<div class="drawing">{drawing}</div>'


def _all_numbers(rows: Sequence[Row]) -> str:
    head = ["task", "method", "shift", "n", "whole test part", "95 % interval", "paper's exam", "paper", "overall",
            "worst class", "seeds"]  # fmt: skip
    lines = []
    for row in rows:
        low, high = (mean([interval[side] for interval in row.intervals]) for side in (0, 1))
        paper = paper_numbers().get(row.task, {}).get(row.method) if not row.across else None
        lines.append(
            [
                th(row.task), numbers_td(f"{row.method} {row.across}".strip()), numbers_td(str(row.run["shift"])),
                number(len(row.seeds), 0), cell_td(row.values, "", None, ""),
                numbers_td(f"{low:.1f} – {high:.1f}", low), cell_td(row.paper_values, "", None, ""),
                numbers_td(printed(paper), None if paper is None else paper[0]), number(mean(row.overall)),
                number(mean(row.worst), 1), numbers_td(" ".join(f"{value:.1f}" for value in row.values)),
            ]
        )  # fmt: skip
    caption = "Every method and task; interval: bootstrap over the test images, mean over seeds"
    return details("Show every method and task", f"{len(rows)} rows", scroll(table(caption, head, lines)))


# --- classes and mixes ---


def class_accuracy(row: Row) -> tuple[list[str], list[float | None]]:
    """The classes, and the mean over seeds of the accuracy in each; none for a class that the exam does not have."""
    scores = [RunFolder(folder).scores()["whole"].get("per_class", []) for folder in row.folders]
    values = [None if any(v is None for v in seeds) else mean(seeds) for seeds in zip(*scores, strict=True)]
    record = json.loads((row.folders[0] / "run.json").read_text())
    return list(record.get("classes", [str(k) for k in range(len(values))])), values


def _by_class(title: str, rows: Sequence[Row]) -> str:
    found = [(row, *class_accuracy(row)) for row in rows]
    classes = found[0][1]
    lines = []
    for row, _, values in found:
        cells = [number(v, 1, heat=v) for v in values]
        lines.append([th(f"{row.method} {row.across}".strip()), *cells])
    caption = f"{title}: accuracy in % by class, whole test part, mean over seeds"
    return scroll(table(caption, ["method", *classes], lines, kind="heat"))


def _mix(title: str, rows: Sequence[Row], data: Path | None) -> str:
    record = json.loads((rows[0].folders[0] / "run.json").read_text())
    scores = RunFolder(rows[0].folders[0]).scores()
    confusion = scores.get("paper", scores["whole"]).get("confusion")
    if confusion is None:
        return ""
    target = np.array(confusion).sum(axis=1)
    classes = list(record.get("classes", map(str, range(len(target)))))
    why, mix = "", None
    try:
        mix = _mixes(rows[0], data)
    except UserError as error:
        why = f" The source's mix is not shown: {error.sentence}"
    series = {"source": _share(mix.source)} if mix else {}
    series["target"] = _share(target)
    keys = {"c0": "source", "c1": "target"} if mix else {"c0": "target"}
    drawing = svg.bars(series, classes, f"{title}: share of each class in %")
    text = f"Share of each class in %. Target: the exam's labels in the target's mix (oracle).{why}"
    parts = [f"<h3>{escape(title)}</h3>", legend(keys), f'<div class="drawing">{drawing}</div>']
    return "".join([*parts, f'<p class="note">{escape(text)}</p>', _estimates(title, rows, classes, target, mix)])


def _mixes(row: Row, data: Path | None) -> LabelDistributions:
    """The task's own, by its data: that of mini is always at hand, others can take minutes and are read on request."""
    if data is None and not row.task.startswith("mini/"):
        raise UserError("no data folder was named with --data.", "name it.")
    return LabelDistributions.of(task_of(row.run, data))


def _share(counts: Any) -> list[float]:
    total = float(np.sum(counts)) or 1.0
    return [100 * float(n) / total for n in counts]


def _estimates(
    title: str, rows: Sequence[Row], classes: Sequence[str], target: Any, mix: LabelDistributions | None
) -> str:
    """The target mix that each method's classifier leads to, and how far it is from the exam's."""
    true = _share(target)
    lines = [[th("target (oracle)"), number(0.0, 1), *(number(v, 1, heat=v) for v in true)]]
    if mix is not None:
        own = _share(mix.source)
        lines.append([th("source (its labels)"), number(_apart(own, true), 1), *(number(v, 1, heat=v) for v in own)])
    known = 0
    for row in rows:
        told = [found["target_mix"] for folder in row.folders if (found := mixes(folder))]
        if told:
            known += 1
            guess = _share(np.mean(told, axis=0))
            label = th(f"{row.method} {row.across}".strip())
            lines.append([label, number(_apart(guess, true), 1), *(number(v, 1, heat=v) for v in guess)])
    if not known:
        return ""
    caption = f"{title}: target mix as estimated without target labels, in %, mean over seeds"
    note = "off by: half the sum of absolute differences to the target's mix."
    return scroll(table(caption, ["estimated by", "off by", *classes], lines, kind="heat")) + (
        f'<p class="note">{note}</p>'
    )


def _apart(guess: Sequence[float], true: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(guess, true, strict=True)) / 2


# --- training and settings ---


def _curves(title: str, rows: Sequence[Row]) -> str:
    cards = []
    for row in rows:
        traces = [trace for folder in row.folders if (trace := RunFolder(folder).trace())]
        names = list(dict.fromkeys(name for trace in traces for entry in trace for name in entry["losses"]))
        drawings = []
        for name in names:
            lines = [[(e["step"], e["losses"][name]) for e in trace if name in e["losses"]] for trace in traces]
            drawings.append(_sparkline(lines, f"loss: {name}", "c0"))
        seen = [[(e["step"], e["oracle"]["whole"]) for e in trace if "oracle" in e] for trace in traces]
        if any(seen):
            drawings.append(_sparkline([line for line in seen if line], "oracle: per-class mean, %", "c1"))
        if drawings:
            cards.append(card(f"{row.method} {row.across}".strip(), "".join(drawings)))
    if not cards:
        return ""
    return f'<h3>{escape(title)}</h3><div class="cards">{"".join(cards)}</div>'


def _sparkline(lines: Sequence[svg.Points], what: str, kind: str) -> str:
    whole = [line for line in lines if line]
    first, last = mean([line[0][1] for line in whole]), mean([line[-1][1] for line in whole])
    text = f"{what}, {svg.short(first)} → {svg.short(last)}"
    return f"<figure>{svg.sparkline(whole, text, kind=kind)}<figcaption>{escape(text)}</figcaption></figure>"


def _settings(row: Row) -> str:
    runs = []
    for seed, folder, value in zip(row.seeds, row.folders, row.values, strict=True):
        record = json.loads((folder / "run.json").read_text())
        seconds = next((entry.get("seconds") for entry in reversed(RunFolder(folder).trace())), None)
        versions = " ".join(f"{name} {v}" for name, v in record.get("versions", {}).items())
        runs.append(
            [th(str(seed)), numbers_td(folder.name), number(value), number(seconds, 0),
             numbers_td(str(record.get("device", "–"))), numbers_td(versions)]
        )  # fmt: skip
    told = [[th(name), _plain(value)] for name, value in flat(row.run).items()]
    made = scroll(table("Runs", ["seed", "key", "per-class mean", "seconds", "device", "versions"], runs))
    return details(
        place(row), cell(row.values), made + scroll(table("Settings", ["setting", "value"], told, kind="plain"))
    )


def _plain(value: Any) -> str:
    return f'<td class="word"><code>{escape(json.dumps(value, ensure_ascii=False))}</code></td>'
