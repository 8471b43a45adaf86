"""What the tests of the frameworks found, kept in `results.json`, and the table of it in docs/frameworks.md."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from .cases import CASES, Case

FILE = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent.parent.parent / "docs" / "frameworks.md"
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


@dataclass(frozen=True)
class Result:
    """A case that passed: with which versions, and how many graphs and collectives one rank reported."""

    name: str
    version: str
    torch: str
    graphs: int
    collectives: int

    @classmethod
    def passed(cls, case: Case, graphs: int, collectives: int) -> Result:
        return cls(case.name, case.version, torch.__version__.split("+")[0], graphs, collectives)


def stored() -> dict[str, Result]:
    return {name: Result(**values) for name, values in json.loads(FILE.read_text()).items()} if FILE.exists() else {}


def store(found: list[Result]) -> None:
    """Puts `found` in the place of earlier results of the same cases, and the table on its page."""
    known = stored() | {result.name: result for result in found}
    ordered = {case.name: asdict(known[case.name]) for case in CASES if case.name in known}
    FILE.write_text(json.dumps(ordered, indent=1) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])


def table() -> str:
    """One row per case, as Markdown."""
    rows = ["| framework | version | torch | how | result | compared with eager |", "|---|---|---|---|---|---|"]
    results = stored()
    for case in CASES:
        result = results.get(case.name)
        if result is None:
            rows.append(f"| {case.name} | | | `{case.how}` | not run | |")
            continue
        counts = f"passed (graphs: {result.graphs}, collectives in them: {result.collectives})"
        rows.append(f"| {case.name} | {result.version} | {result.torch} | `{case.how}` | {counts} | {case.compared} |")
    return "\n".join(rows) + "\n"
