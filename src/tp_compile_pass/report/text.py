"""A report as text for a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tp_compile_pass.report.record import GraphReport, Place, Report, ScheduleRecord
from tp_compile_pass.report.source import SourceLine


def render(report: Report, width: int = 120) -> str:
    """The report as plain text, `width` columns wide."""
    text = io.StringIO()
    Console(file=text, width=width, no_color=True).print(*renderables(report), sep="\n")
    return text.getvalue()


def renderables(report: Report) -> list[RenderableType]:
    """What rich prints for a report: one panel per graph."""
    if not report.graphs:
        return [Text(f"tp_inductor, torch {report.torch_version}: no graph was compiled")]
    return [_graph(graph, report.torch_version) for graph in report.graphs]


def _graph(graph: GraphReport, torch_version: str) -> RenderableType:
    parts = Table.grid(padding=(0, 0))
    for result in graph.passes:
        parts.add_row(Text(f"{result.name}: {len(result.applied)} applied, {len(result.skipped)} left alone", "bold"))
        for place in result.applied:
            parts.add_row(_place("  ✔", place))
        for place in result.skipped:
            parts.add_row(_place("  ·", place))
    if not graph.rewrites:
        parts.add_row(Text("nothing to rewrite: compiled as plain Inductor would"))
    for entered in graph.boundary:
        reason = f"  ({entered.reason})" if entered.reason else ""
        parts.add_row(Text(f"async input {entered.name}: {entered.handling}  {_line(entered.line)}{reason}"))
    if graph.collectives:
        table = Table(box=None, padding=(0, 1), title="collectives", title_justify="left")
        for heading in ("phase", "kind", "group", "dtype", "shape", "bytes", "line"):
            table.add_column(heading, overflow="fold")
        for c in graph.collectives:
            table.add_row(c.phase, c.kind, c.group, c.dtype, " x ".join(c.shape), c.bytes, _line(c.line))
        parts.add_row(table)
    else:
        parts.add_row(Text("no collective in the graph"))
    for schedule in graph.schedules:
        parts.add_row(Text(_schedule(schedule)))
    for finding in graph.findings:
        parts.add_row(Text(f"{finding.severity}: {finding}", "red" if finding.severity == "error" else "yellow"))
    for note in graph.notes:
        parts.add_row(Text(f"note: {note}"))
    for warning in graph.warnings:
        parts.add_row(Text(f"warning: {warning}", "yellow"))
    title = f"graph {graph.compile_id or '?'} · {graph.inner} · torch {torch_version}"
    return Panel(parts, title=Text(title), title_align="left")


def _schedule(record: ScheduleRecord) -> str:
    emitted = "not read" if record.emitted is None else "as planned"
    if record.emitted not in (None, record.planned):
        emitted = "in another order than planned"
    return (
        f"order of the {record.phase} graph: exposed communication {_ms(record.exposed_before)} → "
        f"{_ms(record.exposed_after)} of {_ms(record.transfer_seconds)}, beside {_ms(record.compute_seconds)} of "
        f"compute; peak memory {record.peak_before / 1e6:.1f} → {record.peak_after / 1e6:.1f} MB; "
        f"{record.moved} steps moved; generated code {emitted} (by the cost model, {record.source})"
        + "".join(f"; {text}" for text in _sizes(record))
    )


def _sizes(record: ScheduleRecord) -> Iterator[str]:
    """For which dynamic sizes the order is right."""
    if record.sizes:
        yield f"decided for {_equal(record.sizes)}"
    for holds, text in ((True, "holds for"), (False, "does not hold for")):
        if found := [_equal(other.sizes) for other in record.other_sizes if other.holds is holds]:
            yield f"{text} {' and for '.join(found)}"


def _equal(sizes: dict[str, int]) -> str:
    return ", ".join(f"{symbol} = {value}" for symbol, value in sorted(sizes.items()))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _place(mark: str, place: Place) -> Text:
    reason = f"  ({place.reason})" if place.reason else ""
    code = f"  {place.line.code}" if place.line and place.line.code else ""
    return Text(f"{mark} {place.what}  {_line(place.line)}{code}{reason}")


def _line(line: SourceLine | None) -> str:
    return str(line) if line else "(line unknown)"
