"""Compares AOTAutograd's joint graph with the forward and backward graphs that it was split into.

What counts as lost. A collective of the joint graph has to be in the forward or in the backward graph. Two kinds need
not be, whoever compiles:
* one that is dead in the joint graph already (neither an output nor an operation with effects, such as a wait, needs
  it): the split drops dead code, and AOTAutograd drops most of it before;
* one that does over again, on the same operands, what another does: the partitioner merges the two, as it merges any
  equal operations. Both results are the same by definition, and ranks that split the same graph merge the same.
Everything else gives wrong numbers or leaves other ranks waiting: an error, or a warning where the user's own pass
changes the joint graph or splits it. One that is waited for and that no output depends on is a note: torch drops it in
some places (2.13: inside an activation checkpoint, and where backward needs nothing of forward). No number is
wrong then, and ranks that split the same graph drop the same.

What counts as computed twice. The split copies to backward what it saves no result for. For a collective that is sound
only as long as every rank decides so (the decision depends on sizes, and those may differ by rank), and it costs the
communication once more. So it is a note where an activation checkpoint or a setting of torch's asks for it, and a
warning where nothing does: torch's partitioner saves collectives then (by its list of cheap operations up to torch 2.6,
explicitly later).

Nodes keep their names in a split, so a collective is looked for by its name and by what it does (`snapshot.signature`).
What has another name, as a rewritten one has, is matched by what it does alone. One pass over each graph.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.fx import GraphModule, Node

from tp_compile_pass import compat_joint
from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.ir import collectives
from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import Finding, GraphReport
from tp_compile_pass.report.source import SourceLine, source_line
from tp_compile_pass.verify.check import deliver, described
from tp_compile_pass.verify.events import Start
from tp_compile_pass.verify.snapshot import signature
from tp_compile_pass.verify.trace import nested_graphs


@dataclass(frozen=True)
class Act:
    """A collective, or what may be one, of a graph: `name` is its node's, after those of the nodes that call the nested
    graph it is in. Two acts with the same `value` give the same result. `needed`: an output depends on it, and not just
    the order of execution. `asked`: a checkpoint recomputes it."""

    name: str
    signature: str
    value: Hashable
    needed: bool
    asked: bool
    node: Node

    @property
    def text(self) -> str:
        return described(self.node)

    @property
    def line(self) -> SourceLine | None:
        return source_line(self.node)


@dataclass
class Partition:
    """What a split did to communication: acts of the joint graph that are gone, and acts that are there once more than
    in the joint graph, with whether that was asked for."""

    lost: list[Act]
    again: list[tuple[Act, bool]]


def acts(gm: GraphModule) -> list[Act]:
    """What of `gm` communicates and is alive, in order, nested graphs included; the values are nodes."""
    alive = _alive(gm)
    return [act for node in gm.graph.nodes if node in alive for act in _acts(gm, node, node, "", alive[node])]


def with_values(gm: GraphModule, found: list[Act]) -> list[Act]:
    """The acts of a graph with values that equal acts share."""
    values = _values(gm) if found else {}
    return [replace(act, value=_of_values(act.value, values)) for act in found]


def _acts(gm: GraphModule, node: Node, value: Hashable, outside: str, needed: bool) -> Iterator[Act]:
    name, row = outside + node.name, collectives.collective_op(node)
    nested = [] if row is not None else nested_graphs(gm, node)
    for number, module in enumerate(nested):
        for inner in module.graph.nodes:
            yield from _acts(module, inner, (value, number, inner.name), f"{name}/", needed)
    if row is not None:
        words = signature(Start(node, gm, row, 0, collectives.group_name(node), collectives.reduce_op(node)))
    elif not nested and collectives.may_communicate(node):
        words = f"{node.target}, which may communicate"
    else:
        return
    yield Act(name, words, value, needed, compat_joint.is_recomputed(node), node)


def _alive(gm: GraphModule) -> dict[Node, bool]:
    """The nodes that an output or an operation with effects needs; true where that is not only a wait."""
    alive: dict[Node, bool] = {}
    for node in reversed(gm.graph.nodes):
        if not alive.get(node):
            if collectives.is_wait(node):
                alive.setdefault(node, False)
            elif node.op in ("placeholder", "output") or node.is_impure():
                alive[node] = True
        if node in alive:
            needed = alive[node]
            for used in node.all_input_nodes:
                alive[used] = needed or alive.get(used, False)
    return alive


def _values(gm: GraphModule) -> dict[Node, Hashable]:
    """A value per node that two nodes share only where both call the same function on the same values."""
    values: dict[Node, Hashable] = {}
    numbers: dict[Hashable, int] = {}
    for node in gm.graph.nodes:
        values[node] = node.name
        if node.op == "call_function" and not compat_joint.has_effects_or_draws(node):
            key = (node.target, _frozen(node.args, values), _frozen(node.kwargs, values))
            with suppress(TypeError):  # an argument that cannot be compared
                values[node] = numbers.setdefault(key, len(numbers))
    return values


def _frozen(argument: Any, values: dict[Node, Hashable]) -> Hashable:
    if isinstance(argument, Node):
        return "value", values[argument]
    if isinstance(argument, (list, tuple)):
        return tuple(_frozen(item, values) for item in argument)
    if isinstance(argument, dict):
        return tuple((key, _frozen(item, values)) for key, item in argument.items())
    return type(argument).__name__, argument


def _of_values(value: Any, values: dict[Node, Hashable]) -> Hashable:
    return (_of_values(value[0], values), *value[1:]) if isinstance(value, tuple) else values[value]


def compare(joint: list[Act], forward: list[Act], backward: list[Act]) -> Partition:
    """Finds each act of the joint graph again, by its name or, where it has another, by what it does."""
    known = {(act.name, act.signature): act for act in joint}
    missing = dict(known)
    kept: set[Hashable] = set()
    again: list[tuple[Act, bool]] = []
    renamed: list[Act] = []
    for act in (*forward, *backward):
        key = act.name, act.signature
        if key in missing:
            kept.add(missing.pop(key).value)
        elif key in known:
            again.append((act, known[key].asked))
        else:
            renamed.append(act)
    alike: dict[str, list[Act]] = {}
    for act in missing.values():
        alike.setdefault(act.signature, []).append(act)
    asked = {act.signature for act in joint if act.asked}
    for act in renamed:
        if alike.get(act.signature):
            kept.add(alike[act.signature].pop(0).value)
        else:
            again.append((act, act.signature in asked))
    lost = [act for several in alike.values() for act in several if act.value not in kept]
    return Partition(lost, again)


def watching(options: TPOptions, report: GraphReport) -> AbstractContextManager[None]:
    """A context manager under which each split of a joint graph is checked, and what it did is reported. VerifyError is
    raised out of a split that loses a collective (with `tp.verify=error`)."""
    if options.verify == "off" or options.inner == "eager":
        return nullcontext()
    if refused := compat_joint.watching_refused():
        report.notes.append(f"forward and backward are not compared with the joint graph: {refused}")
        return nullcontext()
    return compat_joint.watching_partitions(partial(_begin, options=options, report=report))


def _begin(gm: GraphModule, options: TPOptions, report: GraphReport) -> Callable[[GraphModule, GraphModule], None]:
    joint: list[Act] = []
    with failing_closed("reading the joint graph", options, report):
        joint = with_values(gm, acts(gm))

    def end(forward: GraphModule, backward: GraphModule) -> None:
        found: list[Finding] = []
        with failing_closed("comparing the joint graph with forward and backward", options, report):
            found = _judged(compare(joint, acts(forward), acts(backward)), report)
        deliver(found, options, report)

    return end if joint else lambda forward, backward: None


def _judged(split: Partition, report: GraphReport) -> list[Finding]:
    """The findings about a split; what was asked for is noted."""
    found = []
    passes, setting = compat_joint.joint_passes_of_the_user(), compat_joint.recomputation_asked()
    for act in split.lost:
        if not act.needed:
            report.notes.append(f"torch drops a collective whose result nothing uses: {act.text}")
            continue
        message = f"{act.text} is neither in the forward nor in the backward graph"
        advice = f"look at what {passes} does to it" if passes else "please report this program"
        severity = "warning" if passes else "error"
        found.append(Finding("lost", "joint", act.name, message, advice, severity, act.line))
    for act, asked in split.again:
        if asked or setting:
            why = "its activation checkpoint" if asked else setting
            report.notes.append(f"{why} has the backward graph communicate again: {act.text}")
            continue
        message = f"{act.text} communicates once more in forward and backward than in the joint graph"
        advice = "ranks that do not all split their graph so wait for each other; please report this program"
        found.append(Finding("recomputed", "joint", act.name, message, advice, "warning", act.line))
    return found
