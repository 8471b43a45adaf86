"""What a graph communicates, frozen, so that it can be compared after the graph was edited in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch.fx import Node

from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.report.source import SourceLine, source_line
from tp_compile_pass.verify.events import Marker, Start, Trace, Unknown

#: The group of what is ordered with everything.
EVERY_GROUP = "*"


@dataclass(frozen=True)
class Entry:
    """One act of communication: `key` names its node, `signature` says what it does (kind, constant arguments, dtypes
    and shapes), `group` on which process group."""

    key: tuple[int, str]
    signature: str
    group: str
    waits: int
    line: SourceLine | None
    #: One bit for every earlier collective, in order, that its data depends on.
    depends: int = 0
    #: Its own bit; None for what is not a collective of the table.
    bit: int | None = None

    @property
    def text(self) -> str:
        return f"{self.key[1]} ({self.signature}){f' from {self.line}' if self.line else ''}"


@dataclass
class Snapshot:
    """Communication in order of execution, and the redundant waits."""

    order: list[Entry] = field(default_factory=list)
    again: list[Entry] = field(default_factory=list)

    def of_group(self, group: str) -> list[Entry]:
        """What happens on `group`, together with what is ordered with everything."""
        return [entry for entry in self.order if entry.group in (group, EVERY_GROUP)]


def snapshot(trace: Trace) -> Snapshot:
    """Freezes what `trace` says about the graph."""
    result = Snapshot()
    for step in trace.order:
        if isinstance(step, Start):
            result.order.append(_of_start(step))
        elif isinstance(step, Unknown):
            node = step.node
            name = collectives.op_name(node) or getattr(node.target, "__qualname__", str(node.target))
            key = (id(node.graph), node.name)  # nested graphs repeat each other's names
            result.order.append(Entry(key, f"{name}, which may communicate", EVERY_GROUP, 0, source_line(node)))
        elif isinstance(step, Marker):
            result.order.append(Entry((0, step.text), step.text, EVERY_GROUP, 0, None))
    result.again = [_of_start(start) for _, start in trace.again]
    return result


def expected(before: Snapshot, after: Snapshot, replaced: Mapping[tuple[int, str], str | None]) -> Snapshot:
    """What `before` is to become where the collectives `replaced` give way on purpose: to one that is there already, to
    a new one in the same place, or (None) to nothing. The others stay as they are, and so does what depends on what."""
    if not replaced:
        return before
    known = {entry.key for entry in before.order}
    made = _numbered(after)
    result = Snapshot(again=before.again)
    now: dict[int, int] = {}  # the bit of a collective before → its bit afterwards
    for (key, number), entry in _numbered(before).items():
        instead = replaced.get(key, key[1])
        key = (key[0], instead or "")
        stands = made.get((key, number))
        if entry.key not in replaced or (key not in known and instead):
            depends = sum({1 << now[bit] for bit in now if entry.depends >> bit & 1})
            signature = stands.signature if stands and key not in known else entry.signature
            result.order.append(replace(entry, key=key, signature=signature, depends=depends))
        if stands and entry.bit is not None and stands.bit is not None:
            now[entry.bit] = stands.bit
    return result


def _numbered(snapshot: Snapshot) -> dict[tuple[tuple[int, str], int], Entry]:
    """The entries by key and by how often that key came before: a nested graph may be called several times."""
    seen: Counter[tuple[int, str]] = Counter()
    numbered = {}
    for entry in snapshot.order:
        numbered[entry.key, seen[entry.key]] = entry
        seen[entry.key] += 1
    return numbered


def _of_start(start: Start) -> Entry:
    node = start.node
    key = (id(start.module), node.name)
    return Entry(key, signature(start), start.group, len(start.waits), source_line(node), start.depends, start.index)


def signature(start: Start) -> str:
    """What a collective does, in words that are equal for equal collectives: kind, group, constants, dtypes, shapes."""
    node = start.node
    parts = [start.row.kind, f"group {start.group}"] + constants(node)
    any_order = start.row.kind == "all_reduce"  # element by element: a transposed operand is the same to the others
    for operand in collectives.operands(node, start.row.reads or start.row.writes):
        parts += [_tensor(value, any_order) for value in collectives.tensors(walk.example_value(operand))]
    return " ".join(parts)


def constants(node: Node) -> list[str]:
    """The arguments of a collective that are neither tensors nor the group: "reduce_op=sum", "src=0"."""
    row, schema = collectives.collective_op(node), collectives.schema_of(node)
    if row is None or schema is None:
        return []
    tensors = {row.group, *row.reads, *row.writes, *row.holds}
    found = []
    for formal in schema.arguments:
        if formal.name in tensors or formal.name == "tag":
            continue
        value = collectives.argument(node, formal.name)
        if formal.name == row.reduce_op:
            value = collectives.reduce_op(node)
        found.append(f"{formal.name}={_constant(value)}")
    return found


def _constant(value: object) -> str:
    if isinstance(value, Node):
        return str(walk.example_value(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_constant, value)) + "]"
    return str(value)


def _tensor(tensor: torch.Tensor, any_order: bool) -> str:
    sizes = [str(size) for size in tensor.shape]
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(sorted(sizes) if any_order else sizes)}]"
