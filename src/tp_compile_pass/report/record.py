"""The record of what was done: plain dataclasses that serialise to JSON.

A `Report` holds `GraphReport`s, one per graph that Dynamo handed to the backend. A graph's entry grows while torch
works on it: the backward graph is compiled when `.backward()` first runs, and is added to the same entry then.
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tp_compile_pass.report.source import SourceLine

SCHEMA_VERSION = 1
#: `reports()` keeps this many graphs; a long-running process that recompiles must not grow without bound.
KEPT_GRAPHS = 1000


@dataclass(frozen=True)
class Place:
    """A graph node that a pass looked at: `node` is its name, `what` the form that was found there, `reason` why it
    was left alone (empty where the pass applied)."""

    node: str
    what: str
    line: SourceLine | None
    reason: str = ""


@dataclass
class PassResult:
    """What one pass did to one graph: the places it changed, and those it left alone with the reason."""

    name: str
    applied: list[Place] = field(default_factory=list)
    skipped: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class BoundaryInput:
    """An AsyncCollectiveTensor that entered a graph as its input `name`: how it was handled and, where something better
    was not possible, the `reason`. `line` is where the region first uses it."""

    name: str
    handling: str
    reason: str
    line: SourceLine | None


@dataclass(frozen=True)
class CollectiveRecord:
    """One collective of a graph. `bytes` is the size of its result on this rank, an integer or, with dynamic shapes,
    a sympy expression as text; `phase` is "captured" for the graph as Dynamo saw it, else "forward", "backward" or
    "inference" after AOTAutograd."""

    phase: str
    op: str
    kind: str
    group: str
    dtype: str
    shape: tuple[str, ...]
    bytes: str
    line: SourceLine | None


@dataclass(frozen=True)
class ScheduledCollective:
    """A collective in a ScheduleRecord. `transfer_seconds` is what it takes by the cost model; `exposed_before` and
    `exposed_after` how long the compute stream stands still for it in Inductor's order and in ours."""

    kind: str
    group: str
    line: SourceLine | None
    transfer_seconds: float
    exposed_before: float
    exposed_after: float


@dataclass(frozen=True)
class OtherSizes:
    """What the order of a graph with dynamic shapes would do at other sizes (by symbol) than it was decided for:
    exposed seconds in Inductor's order and in ours, and whether the peak memory stays inside the bound."""

    sizes: dict[str, int]
    exposed_before: float
    exposed_after: float
    inside_memory: bool

    @property
    def holds(self) -> bool:
        """Whether the order is right there, too."""
        return self.inside_memory and self.exposed_after <= self.exposed_before * (1 + 1e-9)


@dataclass
class ScheduleRecord:
    """The order that a graph's kernels and collectives got, against Inductor's ("before"). All seconds are the cost
    model's, by the figures from `source`; peaks are the bytes of its inputs, constants and buffers that are alive at
    once. `moved` counts the steps that changed their place."""

    phase: str
    compute_seconds: float
    transfer_seconds: float
    exposed_before: float
    exposed_after: float
    peak_before: int
    peak_after: int
    moved: int
    source: str
    #: The steps in the order planned: the op of a collective, "wait", or "kernels" for those in between.
    planned: list[str] = field(default_factory=list)
    #: The steps of the code that Inductor generated; None where it was not read (C++ code, or several lists in one).
    emitted: list[str] | None = None
    collectives: list[ScheduledCollective] = field(default_factory=list)
    #: The dynamic sizes that the order was decided for, by symbol.
    sizes: dict[str, int] = field(default_factory=dict)
    #: Smaller and larger ones that it was looked at for.
    other_sizes: list[OtherSizes] = field(default_factory=list)


@dataclass(frozen=True)
class Finding:
    """A rule of the verifier that a graph breaks: where (`phase`, the graph node, the user's line), what is wrong and
    what to do. `severity` is "error" where wrong numbers or a hang are certain to be possible, else "warning"."""

    rule: str
    phase: str
    node: str
    message: str
    advice: str
    severity: str
    line: SourceLine | None

    def __str__(self) -> str:
        where = f" at {self.line}" if self.line else ""
        return f"{self.rule}{where} ({self.phase} graph): {self.message}. {self.advice[:1].upper()}{self.advice[1:]}."


@dataclass
class GraphReport:
    """All that happened to one graph."""

    compile_id: str
    inner: str
    options: dict[str, Any]
    passes: list[PassResult] = field(default_factory=list)
    boundary: list[BoundaryInput] = field(default_factory=list)
    collectives: list[CollectiveRecord] = field(default_factory=list)
    #: Phases ("forward", "backward", "inference") whose graph after AOTAutograd was seen. A graph that torch loads
    #: from its AOTAutograd cache is never rebuilt, and its phases stay absent.
    phases: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    #: One per scheduled list of kernels; none for a graph that was loaded from Inductor's cache.
    schedules: list[ScheduleRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, message: str, category: type[Warning] = UserWarning) -> None:
        """Files a warning and shows it to the user."""
        self.warnings.append(message)
        warnings.warn(f"tp_inductor: {message}", category, stacklevel=3)

    @property
    def rewrites(self) -> list[Place]:
        """Every place that some pass changed, in the order of the passes."""
        return [place for result in self.passes for place in result.applied]


@dataclass
class Report:
    """The graphs of one call (`explain`) or of one compilation (`reports()`)."""

    graphs: list[GraphReport] = field(default_factory=list)
    torch_version: str = torch.__version__
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        values: dict[str, Any] = json.loads(self.to_json())
        return values

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent)

    def __str__(self) -> str:
        from tp_compile_pass.report.text import render

        return render(self)


_kept: deque[GraphReport] = deque(maxlen=KEPT_GRAPHS)
_collector: ContextVar[list[GraphReport] | None] = ContextVar("tp_compile_pass_collector", default=None)


def reports() -> list[Report]:
    """The reports of this process, one per graph that tp_inductor compiled, oldest first (the last 1,000)."""
    return [Report([graph]) for graph in _kept]


def clear_reports() -> None:
    """Forgets what `reports()` lists."""
    _kept.clear()


def add(graph: GraphReport) -> None:
    """Files a new graph: under `reports()` and with the `explain` call that is running, if any."""
    _kept.append(graph)
    collector = _collector.get()
    if collector is not None:
        collector.append(graph)


@contextmanager
def collecting() -> Iterator[list[GraphReport]]:
    """Yields a list that receives every graph filed inside the `with` block."""
    graphs: list[GraphReport] = []
    token = _collector.set(graphs)
    try:
        yield graphs
    finally:
        _collector.reset(token)
