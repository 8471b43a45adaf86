"""Scheduler nodes of Inductor → the plain `Problem` that is ordered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from tp_compile_pass import compat_inductor
from tp_compile_pass.compat_inductor import NodeFacts
from tp_compile_pass.cost import fx as fx_cost
from tp_compile_pass.cost.model import Costs, kernel_seconds
from tp_compile_pass.cost.shared import link_of
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.schedule import emitted
from tp_compile_pass.schedule.problem import Buffer, Kind, Problem, Task


@dataclass
class Translation:
    """The problem, and per task the graph node of the collective that it starts (None for all others) and what step it
    is in generated code (as in `schedule.emitted`). `estimated`: Inductor's own figures are among the costs."""

    problem: Problem
    origins: list[Node | None]
    steps: list[str]
    estimated: bool


def translate(snodes: Sequence[Any], costs: Costs) -> Translation:
    """Reads Inductor's list. Near-linear in nodes and dependencies."""
    return _Translator(snodes, costs).run()


class _Translator:
    def __init__(self, snodes: Sequence[Any], costs: Costs) -> None:
        self.snodes, self.costs = snodes, costs
        self.facts = [compat_inductor.node_facts(snode) for snode in snodes]
        self.owner = {out.name: index for index, node in enumerate(self.facts) for out in node.outputs}
        self.kept = compat_inductor.output_names()
        self.sizes: dict[str, tuple[int, int]] = {}
        self.estimated = False
        self.users: dict[str, set[int]] = {}
        self.real = {out.name: out.memory_of for node in self.facts for out in node.outputs}
        for index, node in enumerate(self.facts):
            for name, memory in node.needs:
                if memory and self.owner.get(name) != index:
                    self.users.setdefault(self._memory(name), set()).add(index)

    def _memory(self, name: str) -> str:
        """Whose memory a buffer is: mutations of mutations lead back to the first."""
        while self.real.get(name, name) != name:
            name = self.real[name]
        return name

    def run(self) -> Translation:
        tasks: list[Task] = []
        origins: list[Node | None] = []
        steps: list[str] = []
        random = -1  # the last kernel that draws random numbers: those keep their order
        for index, node in enumerate(self.facts):
            after = {self.owner[name] for name, _ in node.needs if name in self.owner} - {index}
            kind, origin = self._kind(node)
            if node.fx and fx_cost.draws_random_numbers(node.fx[0]):
                after |= {random} - {-1}
                random = index
            queue, transfer = "", 0.0
            waits_for: tuple[int, ...] = ()
            if kind in ("start", "blocking"):
                assert origin is not None
                queue, transfer = self._transfer(origin, node.device)
            elif kind == "wait":
                sources = self._sources(after, tasks)
                if any(tasks[source].kind == "wall" for source in sources):
                    kind = "wall"  # its data is in flight in buffers that Inductor knows nothing of
                else:
                    waits_for = tuple(source for source in sources if tasks[source].kind == "start")
                    kind = "wait" if waits_for else "compute"
            seconds = self._seconds(index, node) if kind == "compute" and node.form in ("kernel", "extern") else 0.0
            tasks.append(Task(node.name, kind, tuple(sorted(after)), seconds, queue, transfer, waits_for))
            origins.append(origin)
            # Not `origin`'s: Inductor lowers an all_reduce to the form that works in place.
            op = collectives.name_of(node.op).rpartition("::")[2] if origin is not None else ""
            kernel = emitted.KERNELS if seconds or kind == "wall" else ""
            steps.append(emitted.WAIT if node.form == "wait" else op or kernel)
        return Translation(Problem(tasks, self._buffers()), origins, steps, self.estimated)

    def _kind(self, node: NodeFacts) -> tuple[Kind, Node | None]:
        """What a node is, and for a collective that the table knows its graph node."""
        if node.form == "wait":
            return "wait", None
        row = collectives.row_of(node.op)
        if row is None:
            communicates = node.form == "collective" or collectives.op_may_communicate(node.op) or self._inside(node)
            return ("wall" if communicates else "compute"), None
        origins = (fx for fx in node.fx if (known := collectives.collective_op(fx)) and known.kind == row.kind)
        origin = next(origins, None)
        if origin is not None and row.waited == "inside":
            return "blocking", origin
        # Inductor knows how long its own collectives need their buffers, and of no others. A row that is not waited
        # for (a send) does not say when its buffer is free again.
        if origin is not None and row.waited == "wait" and node.form == "collective":
            return "start", origin
        return "wall", origin

    def _inside(self, node: NodeFacts) -> bool:
        """Whether a graph that the node runs may communicate."""
        inner = (fx for graph in node.nested for _, fx in walk.nodes(graph))
        return any(collectives.collective_op(fx) or collectives.may_communicate(fx) for fx in inner)

    def _sources(self, after: set[int], tasks: list[Task]) -> list[int]:
        """What a wait with these dependencies waits for; the parts of a list of results may come in between."""
        found: set[int] = set()
        pending = sorted(after)
        seen: set[int] = set()
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            if self.facts[index].form == "nothing":
                pending += tasks[index].after
            else:
                found.add(index)
        return sorted(found)

    def _transfer(self, origin: Node, device: str) -> tuple[str, float]:
        group = collectives.group_name(origin)
        seconds = fx_cost.transfer(origin, link_of(self.costs, device, group))
        return group, _number(seconds)

    def _seconds(self, index: int, node: NodeFacts) -> float:
        snode = self.snodes[index]
        if node.device == "cuda" and (known := compat_inductor.estimated_seconds(snode)) > 0:
            self.estimated = True
            return known
        flops = next((count for fx in node.fx if (count := _number(fx_cost.flops(fx)))), 0.0)
        return kernel_seconds(flops, self._moved(snode, node), self.costs.machine)

    def _moved(self, snode: Any, node: NodeFacts) -> int:
        """Bytes that a kernel reads and writes: each buffer once, and of each no more than the kernel indexes. What
        stays inside the kernel is in registers."""
        internal = self._internal(node)
        largest = max((self._size(out.name)[0] for out in node.outputs), default=0)
        total = 0
        for name, count in compat_inductor.indexed(snode).items():
            elements, itemsize = (0, 0) if name in internal else self._size(self._memory(name))
            # Only of something larger than its results can a kernel want a part.
            total += (min(elements, count()) if elements > largest else elements) * itemsize
        return total

    def _size(self, name: str) -> tuple[int, int]:
        """Elements of a buffer, and bytes of each."""
        if name not in self.sizes:
            self.sizes[name] = compat_inductor.size_of(name)
        return self.sizes[name]

    def _bytes(self, name: str) -> int:
        elements, itemsize = self._size(name)
        return elements * itemsize

    def _internal(self, node: NodeFacts) -> set[str]:
        return {out.name for out in node.outputs if out.read_inside and self._stays_inside(out.name)}

    def _stays_inside(self, name: str) -> bool:
        return not self.users.get(self._memory(name)) and name not in self.kept

    def _buffers(self) -> list[Buffer]:
        found = []
        kept = {self._memory(name) for name in self.kept}
        for index, node in enumerate(self.facts):
            for out in node.outputs:
                if out.takes_memory and not (out.read_inside and self._stays_inside(out.name)):
                    size = self._bytes(out.name)
                    users = tuple(sorted(self.users.get(out.name, ())))
                    if size:
                        found.append(Buffer(size, index, users, out.name in kept))
        freeable = compat_inductor.freeable_inputs(self.snodes)
        readers: dict[str, list[int]] = {name: [] for name in freeable}
        for index, snode in enumerate(self.snodes if freeable else ()):
            for name in compat_inductor.read_names(snode):
                if name in readers:
                    readers[name].append(index)
        for name in compat_inductor.input_names():
            users = tuple(readers.get(name, ()))
            found.append(Buffer(self._bytes(name), -1, users, name in kept or not users))
        return found


def _number(value: Any) -> float:
    """A cost as a number, for the sizes that this compilation was made for."""
    if isinstance(value, (int, float)):
        return float(value)
    symbols = sorted(value.free_symbols, key=str)
    # What only the run will tell (or another process: the size of its process group) counts as 2.
    return float(value.subs({symbol: compat_inductor.hint(symbol) or 2 for symbol in symbols}))
