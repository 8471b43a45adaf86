"""What one rank's graph communicates, per process group, in a form that other ranks can compare with theirs.

Taken from the graph that Dynamo captured, which exists on every rank whether or not a cache then provides the rest. It
holds what has to agree for ranks to meet: the order of collectives on each group, their kind, reduce op, root, dtype
and sizes, and which of them feed which. Operations on DTensors stand for the communication that they imply. What
differs between ranks by design is left out: point-to-point partners, the splits of an all_to_all, symbolic sizes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.report.source import source_line
from tp_compile_pass.verify.events import Start, Trace, Unknown
from tp_compile_pass.verify.snapshot import constants

#: A published fingerprint larger than this (unpacked) is not read.
LIMIT = 8 << 20
#: Kinds whose ranks do different things on purpose.
ONE_SIDED = ("send", "recv", "p2p")
#: Constants that may differ between ranks.
LOCAL_CONSTANTS = ("output_split_sizes", "input_split_sizes")
SYMBOLIC = "?"


@dataclass(frozen=True)
class Step:
    """One collective, or one operation on DTensors: `what` and `sizes` have to agree; `feeds` are the earlier steps of
    the same group that its data depends on; `line` is where it comes from."""

    what: str
    sizes: tuple[str, ...] = ()
    feeds: tuple[int, ...] = ()
    line: str = ""

    def __str__(self) -> str:
        return f"{self.what} [{', '.join(self.sizes)}]" if self.sizes else self.what

    def agrees(self, other: Step) -> bool:
        """Whether the two meet at run time, as far as compile time can tell."""
        if self.what != other.what or len(self.sizes) != len(other.sizes):
            return False
        return all(a == b or SYMBOLIC in (a, b) for a, b in zip(self.sizes, other.sizes, strict=True))


@dataclass
class Fingerprint:
    """The steps of one graph by process group. `broken`: the graph ends at a graph break, and another goes on."""

    groups: dict[str, list[Step]] = field(default_factory=dict)
    broken: bool = False

    def pack(self) -> bytes:
        """As compressed JSON."""
        steps = {g: [[s.what, s.sizes, s.feeds, s.line] for s in many] for g, many in self.groups.items()}
        return zlib.compress(json.dumps({"groups": steps, "broken": self.broken}).encode())

    @classmethod
    def unpack(cls, data: bytes) -> Fingerprint:
        """The reverse of `pack`. Raises ValueError on anything else."""
        try:
            read = json.loads(zlib.decompressobj().decompress(data, LIMIT))
            groups = {
                str(group): [Step(str(w), tuple(map(str, s)), tuple(map(int, f)), str(line)) for w, s, f, line in many]
                for group, many in read["groups"].items()
            }
            return cls(groups, bool(read["broken"]))
        except (zlib.error, TypeError, AttributeError, LookupError) as error:
            raise ValueError(f"not a fingerprint: {error}") from error


def fingerprint(seen: Trace, broken: bool = False) -> Fingerprint:
    """The fingerprint of the graph that `seen` is the trace of."""
    result = Fingerprint(broken=broken)
    places: dict[str, dict[int, int]] = {}  # per group: index of a start → its place in the list
    for entry in seen.order:
        if isinstance(entry, Start) and entry.row.kind not in ONE_SIDED:
            place = places.setdefault(entry.group, {})
            steps = result.groups.setdefault(entry.group, [])
            feeds = tuple(place[i] for i in _bits(entry.depends) if i in place)
            place[entry.index] = len(steps)
            steps.append(_step(entry, feeds))
        elif isinstance(entry, Unknown):
            for group, step in _of_unknown(entry.node):
                result.groups.setdefault(group, []).append(step)
    return result


def _step(start: Start, feeds: tuple[int, ...]) -> Step:
    node, row = start.node, start.row
    fixed = [text for text in constants(node) if not text.startswith(LOCAL_CONSTANTS)]
    sent = [
        value
        for operand in collectives.operands(node, row.reads)
        for value in collectives.tensors(walk.example_value(operand))
    ]
    dtypes = [str(value.dtype).removeprefix("torch.") for value in sent]
    sizes = () if row.kind == "all_to_all" else tuple(_size(n) for value in sent for n in value.shape)
    return Step(" ".join([row.kind, *fixed, *dtypes]), sizes, feeds, _line(node))


def _of_unknown(node: Node) -> Iterator[tuple[str, Step]]:
    """An op that communicates behind our back, on each group that it is known to use."""
    values = [walk.example_value(n) for n in (*node.all_input_nodes, node)]
    tensors: list[Any] = [value for value in values if compat.is_dtensor(value)]
    name = collectives.op_name(node) or str(getattr(node.target, "__name__", node.target))
    if tensors:
        sizes = tuple(_size(n) for value in tensors for n in value.shape)
        layout = " ".join(str(tuple(value.placements)) for value in tensors)
        for group in dict.fromkeys(g for value in tensors for g in compat.mesh_groups(value)):
            yield group, Step(f"{name} on DTensor {layout}", sizes, (), _line(node))
        return
    schema = collectives.schema_of(node)
    for formal in schema.arguments if schema is not None else ():
        value = collectives.argument(node, formal.name)
        if formal.name in ("group_name", "group", "pg_name") and isinstance(value, str):
            yield value, Step(name, (), (), _line(node))


def _size(size: Any) -> str:
    return SYMBOLIC if isinstance(size, torch.SymInt) else str(size)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _line(node: Node) -> str:
    line = source_line(node)
    return f"{line}: {line.code}" if line else ""


# ------------------------------------------------------------------------------------------------------ comparison
def agree(ours: list[Step], theirs: list[Step]) -> bool:
    """Whether two ranks' steps on one group meet, one by one."""
    return len(ours) == len(theirs) and all(a.agrees(b) for a, b in zip(ours, theirs, strict=True))


def same_feeds(ours: list[Step], theirs: list[Step]) -> bool:
    return [step.feeds for step in ours] == [step.feeds for step in theirs]


def diff(rank: int, ours: list[Step], peer: int, theirs: list[Step]) -> str:
    """The two sequences from the first step that differs, at most five of them, with both ranks' lines."""
    rows = []
    for i in range(max(len(ours), len(theirs))):
        a, b = (side[i] if i < len(side) else None for side in (ours, theirs))
        if a is not None and b is not None and a.agrees(b) and a.feeds == b.feeds:
            continue
        for who, step in ((rank, a), (peer, b)):
            fed = f", fed by steps {', '.join(str(f + 1) for f in step.feeds)}" if step and step.feeds else ""
            text = f"{step}{fed}  {step.line}" if step else "nothing: its graph has ended"
            rows.append(f"  step {i + 1}, rank {who}: {text}")
        if len(rows) == 10:
            rows.append("  …")
            break
    return "\n".join(rows)
