"""The demo: the catalogue as a table that fills while it runs, then the report of one model."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tp_compile_pass.demo.catalogue import CALL_SITES, KINDS
from tp_compile_pass.demo.run import BACKENDS, EAGER, ROW_TIMEOUT, Outcome, explain_model, run_row
from tp_compile_pass.report.text import renderables
from tp_compile_pass.testing import RankPool

COLUMNS = (EAGER, *BACKENDS)
STYLES = {"ok": "green", "graph break": "yellow", "error": "red", "wrong": "bold white on red"}
Results = dict[str, dict[str, Outcome]]


def demo(console: Console, json_file: Path | None = None) -> bool:
    """Runs every row on two gloo ranks and shows what came of it. Returns whether tp_inductor did well in all of them
    (`shortcomings` is empty)."""
    console.print(
        f"torch {torch.__version__}, Python {platform.python_version()}, two gloo ranks. Each row runs eagerly and "
        "compiled with fullgraph=True; [green]ok[/] means one graph and eager's numbers."
    )
    results: Results = {}
    rows = [row for kind in KINDS for row in CALL_SITES.values() if row.kind == kind]
    with RankPool(2, env={"TORCH_CPP_LOG_LEVEL": "ERROR"}) as ranks:
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for row in rows:
                live.update(Group(table(results, console.height - 8), Text(f"running {row.name} …")), refresh=True)
                results[row.name] = run_row(ranks, row.name)
        console.print(table(results), summary(results))
        report = ranks.run(explain_model, timeout=ROW_TIMEOUT)[0]
    console.print(
        "\nThe same by hand: [bold]tp_compile_pass.explain(model)(x)[/] of the row tp_mlp_waiting, on rank 0:",
        *renderables(report),
        sep="\n",
    )
    failed = shortcomings(results)
    for line in failed:
        console.print(Text(line, "red"))
    if json_file is not None:
        outcomes = {name: {c: vars(outcome) for c, outcome in row.items()} for name, row in results.items()}
        document: dict[str, Any] = {"torch": torch.__version__, "rows": outcomes, "report": report.to_dict()}
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    return not failed


def shortcomings(results: Results) -> list[str]:
    """The rows in which tp_inductor gives wrong numbers, fails, or does worse than Inductor; one sentence each."""
    found = []
    for name, outcomes in results.items():
        if outcomes[EAGER].verdict != "ok":
            continue
        inductor, ours = (outcomes[backend] for backend in BACKENDS)
        if ours.verdict in ("error", "wrong") or ours.worse_than(inductor):
            found.append(f"{name}: tp_inductor: {ours.verdict} ({ours.detail}); inductor: {inductor.verdict}")
    return found


def table(results: Results, last: int | None = None) -> RenderableType:
    """The rows in `results`, or the `last` of them: a terminal cannot redraw more than it has lines for."""
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column("call site")
    for column in COLUMNS:
        grid.add_column(column, no_wrap=True, min_width=len(column if column == EAGER else "graph break"))
    names = list(results) if last is None else list(results)[-max(last, 1) :]
    kind = ""
    for name in names:
        row = CALL_SITES[name]
        if row.kind != kind:
            kind = row.kind
            grid.add_row(Text(kind, "bold"))
        cells = [results[name].get(column) for column in COLUMNS]
        code = Text(f"  {row.code}", no_wrap=True, overflow="ellipsis")
        grid.add_row(code, *(Text(c.verdict, STYLES[c.verdict]) if c else Text("-") for c in cells))
    return grid


def summary(results: Results) -> RenderableType:
    """How many rows each backend compiles."""
    ok = {b: sum(row[b].verdict == "ok" for row in results.values() if b in row) for b in BACKENDS}
    counts = ", ".join(f"{backend} {count}" for backend, count in ok.items())
    return Text(f"\nok of {len(results)} rows: {counts}", "bold")
