"""One walk over a graph, in execution order and into everything nested in it, that follows what is in flight.

The walk knows in which memory every value lives (views and in-place ops share it), starts a `Start` at each collective
and ends it at its wait. It records the order of communication, and each place that touches memory in flight. The rules
(`verify.rules`) read that record; they never walk a graph themselves. Time is linear in the nodes executed.

At a branch (`torch.cond`) both sides are walked from the same state, and what either leaves in flight is in flight
after it. The body of a loop is walked twice, so that what one round leaves in flight meets the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass import compat
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.ir.table import CollectiveOp
from tp_compile_pass.report.source import of_a_handle
from tp_compile_pass.verify.events import Conflict, Leaving, Marker, Start, Trace, Unknown
from tp_compile_pass.verify.memory import access
from tp_compile_pass.verify.values import NOWHERE, Flight, Value, copy_flight, either, elements, flat, leaves, union


def trace(gm: GraphModule) -> Trace:
    """Walks `gm`. Nested graphs that it does not execute (the backward of an `autograd.Function`) follow at the end."""
    walker = _Walker()
    walker.root(gm)
    while walker.later:
        walker.root(walker.later.pop(0))
    return walker.trace


class _Walker:
    def __init__(self) -> None:
        self.trace = Trace()
        self.later: list[GraphModule] = []
        self._buffers = 0
        self._writers: Flight = {}
        self._readers: Flight = {}
        self._waited: dict[int, Start] = {}
        self._depends: dict[int, int] = {}
        self._attributes: dict[tuple[int, str], Value] = {}
        self._seen_later: set[int] = set()

    # ------------------------------------------------------------------------------------------------------ graphs
    def root(self, gm: GraphModule) -> None:
        """Walks a graph whose inputs come from outside, and records what it leaves in flight."""
        inputs: list[Value] = []
        result, output = self._graph(gm, inputs)
        outside = set(flat(inputs))
        declared = _waits_by_itself(output)
        returned = {b for i, value in enumerate(elements(result)) for b in flat([value]) if i not in declared}
        itself = {b for i, value in enumerate(elements(result)) for b in flat([value]) if i in declared}
        for start in self.trace.starts:
            if not start.pending:
                continue
            through = "output" if start.pending & (returned | itself) else "input" if start.pending & outside else ""
            known = of_a_handle(start.node) or (through == "output" and not start.pending & returned)
            self.trace.leaving.append(Leaving(start, through, known))
            start.pending = set()
        self._writers.clear()
        self._readers.clear()

    def _graph(self, gm: GraphModule, arguments: list[Value] | None) -> tuple[Value, Node | None]:
        """Walks the nodes of `gm`. An empty list of arguments is filled with fresh ones, one per placeholder."""
        values: dict[Node, Value] = {}
        bound = iter(list(arguments or ()))
        fill = arguments if arguments is not None and not arguments else None
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                value = next(bound, None)
                if value is None:
                    value = self._fresh(walk.example_value(node))
                    if fill is not None:
                        fill.append(value)
                values[node] = value
            elif node.op == "get_attr":
                values[node] = self._attribute(gm, node)
            elif node.op == "output":
                return self._value(node.args[0], values), node
            else:
                values[node] = self._call(gm, node, values)
        return NOWHERE, None

    def _attribute(self, gm: GraphModule, node: Node) -> Value:
        key = (id(gm), str(node.target))
        if key not in self._attributes:
            attribute = walk.attribute(gm, node)
            self._attributes[key] = NOWHERE if isinstance(attribute, GraphModule) else self._new()
        return self._attributes[key]

    # ------------------------------------------------------------------------------------------------------- calls
    def _call(self, gm: GraphModule, node: Node, values: dict[Node, Value]) -> Value:
        nested = nested_graphs(gm, node)
        if nested and not self._opaque(gm, node, nested):
            return self._nested_call(gm, node, nested, values)
        if collectives.is_wait(node):
            value = self._value(node.args[0] if node.args else next(iter(node.kwargs.values())), values)
            self._wait(node, value)
            return value
        row = collectives.collective_op(node)
        if row is not None:
            return self._start(gm, node, row, values)
        if collectives.may_communicate(node):
            self.trace.order.append(Unknown(node))
        if getattr(node.target, "__name__", "") == "getitem" and node.op == "call_function":
            picked = self._pick(node, values)
            if picked is not None:
                return picked
        used = access(node)
        for argument in leaves(used.reads):
            if isinstance(argument, Node) and compat.is_async_collective(walk.example_value(argument)):
                self._wait(node, self._value(argument, values))  # such a tensor waits by itself
        self._touch("read", node, self._value(used.reads, values))
        self._touch("write", node, self._value(used.writes, values))
        depends = self._dependencies([self._value(n, values) for n in node.all_input_nodes])
        for buffer in flat([self._value(used.writes, values)]):
            self._depends[buffer] = self._depends.get(buffer, 0) | depends
        if used.shares:
            return frozenset(flat([self._value(used.shares, values)]))
        return self._fresh(walk.example_value(node), depends)

    def _pick(self, node: Node, values: dict[Node, Value]) -> Value | None:
        """An element of a list; None where `getitem` indexes a tensor."""
        source, index = self._value(node.args[0], values), node.args[1]
        if isinstance(source, tuple) and isinstance(index, int) and -len(source) <= index < len(source):
            return source[index]
        return None

    def _start(self, gm: GraphModule, node: Node, row: CollectiveOp, values: dict[Node, Value]) -> Value:
        sent = [self._value(n, values) for n in collectives.operands(node, row.reads)]
        received = [self._value(n, values) for n in collectives.operands(node, row.writes)]
        kinds = collectives.argument(node, "op_list") if row.kind == "p2p" else None
        if kinds:  # each operand of a batch is sent or received
            received = [v for v, kind in zip(sent, kinds, strict=False) if kind == "irecv"]
            sent = [v for v, kind in zip(sent, kinds, strict=False) if kind != "irecv"]
        number = len(self.trace.starts)
        start = Start(node, gm, row, number, collectives.group_name(node), collectives.reduce_op(node))
        start.depends = self._dependencies([*sent, *received])
        for value in sent:
            self._touch("read", node, value)
        for value in received:
            self._touch("write", node, value)
        self.trace.starts.append(start)
        self.trace.order.append(start)
        depends = start.depends | 1 << number
        result = self._result(node, row, received, kinds, depends)
        for buffer in flat(received):
            self._depends[buffer] = depends
        if row.waited == "inside":
            return result
        fresh = set(flat([result])) if not kinds else set(flat(received))
        start.pending, start.size = (set(fresh) if row.waited == "wait" else set()), len(fresh)
        for buffer in fresh:
            self._waited.pop(buffer, None)
            self._writers.setdefault(buffer, []).append(start)
        held = collectives.operands(node, row.holds)
        if kinds:
            held = [n for n, kind in zip(held, kinds, strict=False) if kind != "irecv"]
        for buffer in flat([self._value(n, values) for n in held]):
            self._readers.setdefault(buffer, []).append(start)
            start.held.add(buffer)
        return result

    def _result(self, node: Node, row: CollectiveOp, received: list[Value], kinds: Any, depends: int) -> Value:
        if kinds:
            incoming = iter(received)
            return tuple(next(incoming) if kind == "irecv" else self._new(depends) for kind in kinds)
        if row.writes:
            coalesced = isinstance(collectives.argument(node, row.writes[0]), (list, tuple))
            return tuple(received) if coalesced else received[-1] if received else NOWHERE
        value = walk.example_value(node)
        if value is None:
            inputs = collectives.argument(node, row.reads[0]) if row.reads else None
            if isinstance(inputs, (list, tuple)):
                return tuple(self._new(depends) for _ in inputs)
        return self._fresh(value, depends)

    def _wait(self, node: Node, value: Value) -> None:
        for buffer in set(flat([value])):
            starts = self._writers.pop(buffer, [])
            for start in starts:
                start.pending.discard(buffer)
                if node not in start.waits:
                    start.waits.append(node)
                self._release(start)
                self._waited[buffer] = start
            if not starts and buffer in self._waited:
                self.trace.again.append((node, self._waited[buffer]))

    def _release(self, start: Start) -> None:
        for buffer in start.held:
            readers = [other for other in self._readers.pop(buffer, ()) if other is not start]
            if readers:
                self._readers[buffer] = readers

    def _touch(self, how: str, node: Node, value: Value) -> None:
        if not self._writers and not self._readers:
            return
        for buffer in set(flat([value])):
            for start in self._writers.get(buffer, ()):
                if start.row.waited == "token" or _apart(node, start.node):
                    continue
                self.trace.conflicts.append(Conflict(how, node, start, start.size > 1 and bool(start.waits)))
            if how == "write":
                for start in self._readers.get(buffer, ()):
                    if buffer not in start.pending and not _apart(node, start.node):
                        self.trace.conflicts.append(Conflict("overwrite", node, start))

    # ---------------------------------------------------------------------------------------------- nested graphs
    def _nested_call(self, gm: GraphModule, node: Node, nested: list[GraphModule], values: dict[Node, Value]) -> Value:
        name = str(getattr(node.target, "__name__", node.target))
        operands = [self._value(a, values) for a in _operands(gm, node)]
        if name == "cond":
            return self._branches(node, nested, operands)
        if name in ("while_loop", "scan", "map_impl", "map", "associative_scan"):
            return self._loop(node, nested, operands)
        if name == "autograd_function_apply":
            for backward in nested[1:]:
                if id(backward) not in self._seen_later:
                    self._seen_later.add(id(backward))
                    self.later.append(backward)
            nested = nested[:1]
        result: Value = NOWHERE
        for module in nested:
            result, _ = self._graph(module, self._bind(node, module, operands))
        return self._as_result(node, result)

    def _opaque(self, gm: GraphModule, node: Node, nested: list[GraphModule]) -> bool:
        """Whether the nested graphs neither communicate nor take the operands one by one (flex attention's): such a
        node is an op like any other."""
        expected = [sum(1 for n in module.graph.nodes if n.op == "placeholder") for module in nested]
        if len(_operands(gm, node)) in expected:
            return False
        return not any(
            collectives.collective_op(n) or collectives.is_wait(n) or collectives.may_communicate(n)
            for module in nested
            for _, n in walk.nodes(module)
        )

    def _branches(self, node: Node, nested: list[GraphModule], operands: list[Value]) -> Value:
        before = copy_flight(self._writers), copy_flight(self._readers), dict(self._waited)
        after: list[tuple[Flight, Flight]] = []
        results = []
        for number, module in enumerate(nested):
            self._writers, self._readers, self._waited = copy_flight(before[0]), copy_flight(before[1]), dict(before[2])
            self.trace.order.append(Marker(f"cond {number}"))
            results.append(self._graph(module, self._bind(node, module, operands))[0])
            after.append((self._writers, self._readers))
        self.trace.order.append(Marker("end"))
        self._writers, self._readers = union(w for w, _ in after), union(r for _, r in after)
        self._waited = before[2]
        for buffer, starts in self._writers.items():  # waited for in one branch only: still in flight on the other
            for start in starts:
                start.pending.add(buffer)
        return either(results)

    def _loop(self, node: Node, nested: list[GraphModule], operands: list[Value]) -> Value:
        self.trace.order.append(Marker("loop"))
        result: Value = NOWHERE
        for module in nested:  # a while_loop's condition, then its body
            result, _ = self._graph(module, self._bind(node, module, operands))
        carried = list(elements(result))
        seen = len(self.trace.order)
        again = carried + operands[len(carried) :] if len(carried) <= len(operands) else operands
        self._graph(nested[-1], self._bind(node, nested[-1], again))
        del self.trace.order[seen:]
        self.trace.order.append(Marker("end"))
        return self._as_result(node, result)

    def _bind(self, node: Node, module: GraphModule, operands: list[Value]) -> list[Value]:
        """The operands in the order of the nested graph's placeholders; all of them for each where they do not match
        in number."""
        expected = sum(1 for n in module.graph.nodes if n.op == "placeholder")
        if expected == len(operands):
            return operands
        if expected == len(operands) + 1 and "autograd_function" in str(node.target):
            return [NOWHERE, *operands]
        self.trace.guessed.append(node)
        anything: Value = frozenset(flat(operands))
        return [anything] * expected

    def _as_result(self, node: Node, result: Value) -> Value:
        """A graph returns a list; a node whose value is one tensor stands for its only element."""
        if isinstance(walk.example_value(node), torch.Tensor) and isinstance(result, tuple) and len(result) == 1:
            return result[0]
        return result

    # ------------------------------------------------------------------------------------------------------ values
    def _value(self, argument: Any, values: dict[Node, Value]) -> Value:
        if isinstance(argument, Node):
            return values.get(argument, NOWHERE)
        if isinstance(argument, (list, tuple)):
            return tuple(self._value(item, values) for item in argument)
        if isinstance(argument, dict):
            return tuple(self._value(item, values) for item in argument.values())
        return NOWHERE

    def _fresh(self, example: object, depends: int = 0) -> Value:
        """New memory for a value that tracing recorded as `example` (one buffer where it recorded none)."""
        if isinstance(example, (list, tuple)):
            return tuple(self._fresh(item, depends) for item in example)
        if example is None or isinstance(example, torch.Tensor):
            return self._new(depends)
        return NOWHERE

    def _new(self, depends: int = 0) -> Value:
        self._buffers += 1
        if depends:
            self._depends[self._buffers] = depends
        return frozenset((self._buffers,))

    def _dependencies(self, used: Iterable[Value]) -> int:
        bits = 0
        for buffer in flat(used):
            bits |= self._depends.get(buffer, 0)
        return bits


def nested_graphs(gm: GraphModule, node: Node) -> list[GraphModule]:
    """The graphs that `node` executes: those passed to a higher-order op, or the module that it calls."""
    if node.op == "call_module":
        candidates = [walk.attribute(gm, node)]
    elif not any(n.op == "get_attr" for n in node.all_input_nodes):
        return []
    else:
        flat = list(leaves([node.args, node.kwargs]))
        candidates = [walk.attribute(gm, n) for n in flat if isinstance(n, Node) and n.op == "get_attr"]
    return [module for module in candidates if isinstance(module, GraphModule)]


def _operands(gm: GraphModule, node: Node) -> list[Node]:
    """The arguments that `node` hands to its nested graph: the nodes behind the last graph among its arguments."""
    found: list[Node] = []
    for leaf in leaves([node.args, node.kwargs]):
        if not isinstance(leaf, Node):
            continue
        if leaf.op == "get_attr" and isinstance(walk.attribute(gm, leaf), GraphModule):
            found = []
        else:
            found.append(leaf)
    return found


def _waits_by_itself(output: Node | None) -> set[int]:
    """Which of the graph's outputs are AsyncCollectiveTensors, which wait when they are first used."""
    found = output.args[0] if output is not None and output.args else ()
    items = found if isinstance(found, (list, tuple)) else [found]
    return {
        i
        for i, item in enumerate(items)
        if isinstance(item, Node) and compat.is_async_collective(walk.example_value(item))
    }


def _apart(a: Node, b: Node) -> bool:
    """Whether two nodes certainly touch different parts of one buffer."""
    return compat.disjoint(_written(a), _written(b))


def _written(node: Node) -> object:
    row = collectives.collective_op(node)
    if row is not None:
        inputs = collectives.operands(node, row.writes)
        return walk.example_value(inputs[-1]) if inputs else walk.example_value(node)
    first = next((a for a in access(node).writes if isinstance(a, Node)), None)
    return walk.example_value(first) if first is not None else None
