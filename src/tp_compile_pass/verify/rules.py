"""The rules, as data: each is a name, a message, what to do, and a few lines that find its violations.

`GRAPH_RULES` look at one graph's trace; `PHASE_RULES` compare what communicated before a step with what does after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.verify.events import Start, Trace
from tp_compile_pass.verify.snapshot import Entry, Snapshot

#: A violation: the node, what to fill into the message, and whether it is certain.
Hit = tuple[Node, dict[str, Any], bool]


@dataclass(frozen=True)
class GraphRule:
    """`certain`: a violation gives wrong numbers or a hang whenever timing is unlucky; else it may be meant."""

    name: str
    message: str
    advice: str
    certain: bool
    find: Callable[[Trace], Iterable[Hit]]


@dataclass(frozen=True)
class PhaseRule:
    name: str
    message: str
    find: Callable[[Snapshot, Snapshot], Iterable[tuple[Entry, dict[str, Any]]]]


# ----------------------------------------------------------------------------------------------------- one graph
def _conflicts(how: str, waited: bool | None = None) -> Callable[[Trace], Iterator[Hit]]:
    def find(trace: Trace) -> Iterator[Hit]:
        for c in trace.conflicts:
            if c.how == how and waited in (None, bool(c.start.waits)):
                yield c.node, {"start": c.start}, not c.partial

    return find


def _leaving(*through: str) -> Callable[[Trace], Iterator[Hit]]:
    def find(trace: Trace) -> Iterator[Hit]:
        for leaving in trace.leaving:
            if leaving.through in through and not leaving.declared:
                yield leaving.start.node, {"start": leaving.start, "through": leaving.through}, True

    return find


def _metadata(trace: Trace) -> Iterator[Hit]:
    for start in _each(trace):
        wrong = _shape_or_dtype(start)
        if wrong:
            yield start.node, {"start": start, "wrong": wrong}, True


def _shape_or_dtype(start: Start) -> str:
    """What does not fit between a collective's operand and its result; "" where all does or nothing is known."""
    node, kind = start.node, start.row.kind
    if start.row.waited == "inside" or kind not in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
        return ""
    ranks = collectives.group_size(node)
    sent = [walk.example_value(n) for n in collectives.operands(node, start.row.reads)]
    received = list(collectives.tensors(walk.example_value(node)))
    for a, b in zip(sent, received, strict=False):
        if not isinstance(a, torch.Tensor) or a.dim() == 0:
            continue
        if a.dtype != b.dtype:
            return f"sends {a.dtype} and receives {b.dtype}"
        if a.dim() != b.dim():
            return f"sends {a.dim()} dimensions and receives {b.dim()}"
        wanted = [collectives.expression(size) for size in a.shape]
        wanted[0] = wanted[0] * ranks if kind == "all_gather" else wanted[0]
        found = [collectives.expression(size) for size in b.shape]
        found[0] = found[0] * ranks if kind == "reduce_scatter" else found[0]
        if any(_differ(x, y) for x, y in zip(wanted, found, strict=True)):
            return f"the shapes {tuple(a.shape)} sent and {tuple(b.shape)} received do not fit {ranks} ranks"
    return ""


def _differ(a: sympy.Expr, b: sympy.Expr) -> bool:
    difference = sympy.simplify(a - b)
    return bool(difference.is_number and difference != 0)


def _group_size(trace: Trace) -> Iterator[Hit]:
    for start in _each(trace):
        stated = collectives.argument(start.node, start.row.group_size) if start.row.group_size else None
        ranks = compat.group_ranks(start.group) if isinstance(stated, int) else None
        if ranks is not None and len(ranks) != stated:
            yield start.node, {"start": start, "stated": stated, "ranks": len(ranks)}, True


def _copied_input(trace: Trace) -> Iterator[Hit]:
    if not compat.WAITS_ON_A_COPY:
        return
    for start in _each(trace):
        if start.row.kind == "all_reduce" and start.row.waited == "wait" and not start.row.writes:
            for operand in collectives.operands(start.node, start.row.reads):
                if not compat.is_contiguous(walk.example_value(operand)):
                    yield start.node, {"start": start, "torch": torch.__version__}, True


def _each(trace: Trace) -> Iterator[Start]:
    """Each collective once, however often its nested graph runs."""
    seen: set[Node] = set()
    for start in trace.starts:
        if start.node not in seen:
            seen.add(start.node)
            yield start


GRAPH_RULES = (
    GraphRule(
        "read-before-wait",
        "the result of {start} is read by {node} before it is waited for",
        "wait before the first use (wait_tensor on the result, or Work.wait())",
        True,
        _conflicts("read", waited=True),
    ),
    GraphRule(
        "unwaited-result",
        "the result of {start} is read by {node} and never waited for",
        "wait for the result before its first use (wait_tensor on it, or Work.wait())",
        True,
        _conflicts("read", waited=False),
    ),
    GraphRule(
        "write-in-flight",
        "{node} writes the memory that {start} is still filling",
        "wait for the collective before writing to its result or to a view of it",
        True,
        _conflicts("write"),
    ),
    GraphRule(
        "overwrite-in-flight",
        "{node} overwrites what {start} is still sending",
        "wait for the collective before writing to its input, or send a clone",
        True,
        _conflicts("overwrite"),
    ),
    GraphRule(
        "metadata",
        "{start} {wrong}",
        "its operand or its result was changed without the other; please report this graph",
        True,
        _metadata,
    ),
    GraphRule(
        "group-size",
        "{start} is told {stated} ranks and its group has {ranks}",
        "pass the size of the group that the collective runs on",
        True,
        _group_size,
    ),
    GraphRule(
        "copied-input",
        "Inductor of torch {torch} waits on a copy of what {start} receives, because its input is not contiguous",
        "pass a contiguous tensor to the collective",
        True,
        _copied_input,
    ),
    GraphRule(
        "leaves-in-flight",
        "{start} is still in flight when the graph ends, and leaves it through its {through}",
        "wait for it inside the compiled function, or make sure that the caller waits before using it",
        False,
        _leaving("output", "input"),
    ),
    GraphRule(
        "never-waited",
        "{start} is started and never waited for",
        "wait for it, or drop it on every rank",
        False,
        _leaving(""),
    ),
)


# ------------------------------------------------------------------------------------------------- between phases
def _changed(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    known = {entry.key: entry for entry in before.order}
    for entry in after.order:
        old = known.get(entry.key)
        if old is not None and old.signature != entry.signature:
            yield entry, {"old": old.signature}


def _lost(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    yield from _surplus(before, after)


def _added(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    yield from _surplus(after, before)


def _surplus(more: Snapshot, less: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    """Communication that `more` has and `less` has not, counted by what it is."""
    left = Counter(entry.signature for entry in less.order)
    for entry in more.order:
        left[entry.signature] -= 1
        if left[entry.signature] < 0:
            yield entry, {}


def _reordered(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    by_name = {e.key for e in before.order} == {e.key for e in after.order}
    for group in dict.fromkeys(entry.group for entry in before.order):
        old, new = before.of_group(group), after.of_group(group)
        if len(old) != len(new):
            continue  # lost or added
        for a, b in zip(old, new, strict=True):
            if (a.key != b.key) if by_name else (a.signature != b.signature):
                yield b, {"old": a.text}
                break


def _edges(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    if [entry.key for entry in before.order] != [entry.key for entry in after.order]:
        return  # each bit of `depends` means another collective
    for old, new in zip(before.order, after.order, strict=True):
        if old.depends != new.depends:
            yield new, {}


def _waited_again(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    yield from ((entry, {}) for entry in after.again[len(before.again) :])


def _wait_lost(before: Snapshot, after: Snapshot) -> Iterator[tuple[Entry, dict[str, Any]]]:
    waited = {entry.key for entry in before.order if entry.waits}
    yield from ((entry, {}) for entry in after.order if entry.key in waited and not entry.waits)


PHASE_RULES = (
    PhaseRule("changed", "{entry} was {old}", _changed),
    PhaseRule("lost", "{entry} is gone", _lost),
    PhaseRule("added", "{entry} was not there before", _added),
    PhaseRule("reordered", "{entry} now runs where {old} ran", _reordered),
    PhaseRule("edges", "{entry} no longer depends on the same collectives as before", _edges),
    PhaseRule("wait-lost", "{entry} is no longer waited for", _wait_lost),
    PhaseRule("waited-again", "{entry} is waited for once more than before", _waited_again),
)
