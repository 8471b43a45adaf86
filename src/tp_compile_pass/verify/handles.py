"""What the program does, between the start of a c10d collective and its wait, with the tensors it gave to c10d.

Captured, such a collective works on memory of its own, and its wait writes the result into the user's tensor. What
other code does with that tensor in between is a race in eager code. Compiled it is none, but may give what eager gives
with bad luck only: what is written in between is lost. It shows in the graph that Dynamo captured, and in no other.

Only warned about: tensors are compared by the range of addresses that they cover, which interleaved parts of one
buffer share without overlapping. Ranges that are not known (dynamic shapes) are taken to be apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.ir.writes import writes, written
from tp_compile_pass.report.record import Finding
from tp_compile_pass.report.source import source_line

#: Methods and functions that ask for a tensor's shape or type, not for its data.
METADATA = frozenset(
    f"{name}_like" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
) | frozenset(f"new_{name}" for name in ("empty", "empty_strided", "zeros", "ones", "full", "tensor"))


@dataclass(frozen=True)
class _Use:
    place: int
    node: Node
    writes: bool
    begin: int
    end: int


def findings(gm: GraphModule) -> list[Finding]:
    """Uses that come too early, each once, in the graph that Dynamo captured. Near-linear in nodes."""
    found: dict[tuple[str, str, str], Finding] = {}
    for module in walk.nested_modules(gm):
        deliveries = [(node, start) for node in module.graph.nodes if (start := _delivers(node)) is not None]
        if not deliveries:
            continue
        place = {node: index for index, node in enumerate(module.graph.nodes)}
        uses = _uses(module, place)
        for copy, start in deliveries:
            for rule, use in _too_early(copy, start, uses, place):
                finding = _finding(rule, use.node, start)
                found.setdefault((rule, use.node.name, start.name), finding)
    return list(found.values())


def _delivers(node: Node) -> Node | None:
    """The collective whose awaited result `node` writes into a tensor of the user's; None for any other node."""
    if node.op != "call_method" or node.target != "copy_":
        return None
    source = node.args[1]
    while isinstance(source, Node) and not collectives.is_wait(source):
        source = source.args[0] if source.op == "call_method" or _name(source) == "getitem" else None
    start = source.args[0] if isinstance(source, Node) and source.args else None
    while isinstance(start, Node) and _name(start) == "getitem":
        start = start.args[0]
    return start if isinstance(start, Node) and collectives.collective_op(start) is not None else None


def _uses(module: GraphModule, place: dict[Node, int]) -> dict[int, list[_Use]]:
    """What reads or writes memory, by storage, in the order of the graph."""
    uses: dict[int, list[_Use]] = {}
    for node in module.graph.nodes:
        if node.op not in ("call_function", "call_method") or _name(node) in METADATA:
            continue
        if collectives.is_wait(node) or collectives.collective_op(node) is not None or _delivers(node) is not None:
            continue
        targets = written(node) if writes(node) else []
        own = compat.memory_range(walk.example_value(node))
        for operand in node.all_input_nodes:
            memory = compat.memory_range(walk.example_value(operand))
            if memory is None:
                continue
            target = operand in targets
            if not target and ((own is not None and own[0] == memory[0]) or not _has_data(node)):
                continue  # a view, or a question about the shape
            uses.setdefault(memory[0], []).append(_Use(place[node], node, target, *memory[1:]))
    return uses


def _has_data(node: Node) -> bool:
    value = walk.example_value(node)
    return value is None or any(True for _ in collectives.tensors(value))


def _too_early(
    copy: Node, start: Node, uses: dict[int, list[_Use]], place: dict[Node, int]
) -> Iterator[tuple[str, _Use]]:
    row = collectives.collective_op(start)
    assert row is not None
    for use in _between(copy.args[0], start, copy, uses, place):
        yield ("write-in-flight" if use.writes else "read-before-wait"), use
    for operand in collectives.operands(start, row.holds):
        for use in _between(operand, start, copy, uses, place):
            if use.writes:
                yield "overwrite-in-flight", use


def _between(
    tensor: object, start: Node, copy: Node, uses: dict[int, list[_Use]], place: dict[Node, int]
) -> Iterator[_Use]:
    """The uses of a tensor's memory after `start` and before `copy`."""
    memory = compat.memory_range(walk.example_value(tensor)) if isinstance(tensor, Node) else None
    if memory is None:
        return
    storage, begin, end = memory
    many = uses.get(storage, [])
    first = bisect_right(many, place[start], key=lambda use: use.place)
    for use in many[first : bisect_left(many, place[copy], key=lambda use: use.place)]:
        if use.begin < end and begin < use.end:
            yield use


def _name(node: Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))


_WORDS = {
    "read-before-wait": ("reads what {start} delivers", "Wait for the Work before the first use of its tensor"),
    "write-in-flight": ("writes into the tensor that {start} is working on", "Wait for the Work first"),
    "overwrite-in-flight": ("overwrites what {start} is sending", "Wait for the Work first, or write to a copy"),
}


def _finding(rule: str, node: Node, start: Node) -> Finding:
    row, line = collectives.collective_op(start), source_line(start)
    assert row is not None
    collective = f"{row.kind} ({line}{f': {line.code}' if line and line.code else ''})" if line else row.kind
    words, advice = _WORDS[rule]
    message = f"{_name(node)!r} {words.format(start=collective)} before its Work is waited for"
    return Finding(rule, "captured", node.name, message, advice, "warning", source_line(node))
