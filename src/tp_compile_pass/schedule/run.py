"""Puts our order in place while Inductor compiles a graph, and records what came of it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tp_compile_pass import compat, compat_inductor
from tp_compile_pass.cost import shared
from tp_compile_pass.cost.model import Costs
from tp_compile_pass.failsafe import failing_closed
from tp_compile_pass.ir import collectives, walk
from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import GraphReport, OtherSizes, ScheduledCollective, ScheduleRecord
from tp_compile_pass.report.source import source_line
from tp_compile_pass.schedule import emitted, order
from tp_compile_pass.schedule.problem import Problem, Timeline, flaws, simulate
from tp_compile_pass.schedule.translate import Translation, translate

#: Times the sizes that an order was decided for: whether it holds there is said in the report.
OTHER_SIZES = (1 / 8, 8)


class Overlap:
    """Orders the graphs that come of one captured graph. `marker` has to be in the key of Inductor's caches: it says
    all that the order depends on besides the graph. Where there is nothing to order, `marker` is empty and `compile`
    only compiles."""

    def __init__(self, gm: torch.fx.GraphModule, tp: TPOptions, report: GraphReport) -> None:
        self.tp, self.report = tp, report
        self.marker = ""
        if not tp.overlap or tp.inner != "inductor" or compat.world_group() is None:
            return
        with failing_closed("finding out what communication costs", tp, report):
            self._set_up(gm)

    def _set_up(self, gm: torch.fx.GraphModule) -> None:
        device = _device(gm)
        shared.publish(device)
        if not _communicates(gm):
            return
        if refused := compat_inductor.ordering_refused():
            self.report.notes.append(f"Inductor's order is kept: {refused}")
            return
        self.costs, remark = shared.costs(device)
        self.report.notes += [remark] if remark else []
        depends_on = f"slack={self.tp.memory_slack} costs={shared.digest(self.costs)} code={_code()}"
        self.marker = f"tp_compile_pass.overlap {depends_on}"

    def compile(self, gm: torch.fx.GraphModule, phase: str, inductor: Callable[[], Any]) -> Any:
        """Compiles `gm`, a graph after AOTAutograd, with `inductor`."""
        if not self.marker or not _communicates(gm):
            return inductor()

        made: list[ScheduleRecord] = []
        asked = False

        def plan(snodes: Sequence[Any]) -> Sequence[Any]:
            nonlocal asked
            asked, chosen = True, snodes
            with failing_closed(f"ordering the {phase} graph's kernels", self.tp, self.report):
                chosen = self._plan(snodes, phase, made)
            return chosen

        with compat_inductor.ordering(plan):
            compiled = inductor()
        with failing_closed(f"reading the {phase} graph's generated code", self.tp, self.report):
            _compare(made, compat_inductor.source_code(compiled), self.report)
        if not asked:
            self.report.notes.append(
                f"the {phase} graph's code, and with it its order, was loaded from Inductor's cache"
            )
        self.report.schedules += made
        return compiled

    def _plan(self, snodes: Sequence[Any], phase: str, made: list[ScheduleRecord]) -> Sequence[Any]:
        if compat_inductor.on_several_streams():
            self.report.notes.append(f"the {phase} graph keeps Inductor's order: it uses several streams")
            return snodes
        with compat_inductor.sizes() as sizes:
            translation = translate(snodes, self.costs)
        problem = translation.problem
        if not any(task.kind == "start" for task in problem.tasks):
            return snodes
        if wrong := next(flaws(problem, problem.given), None):
            raise AssertionError(f"Inductor's own order was misread: {wrong}")
        found = order.plan(problem, self.tp.memory_slack, self.costs.caution)
        if wrong := next(flaws(problem, found.order), None):
            raise AssertionError(wrong)
        record = _record(phase, translation, found, self.costs)
        record.sizes = _by_name(sizes)
        # Inductor's own estimates are for the sizes of this compilation only.
        if sizes and found.order != problem.given and not translation.estimated:
            others = (self._elsewhere(snodes, found.order, factor) for factor in OTHER_SIZES)
            record.other_sizes = [other for other in others if other is not None and other.sizes != record.sizes]
        made.append(record)
        return [snodes[index] for index in found.order]

    def _elsewhere(self, snodes: Sequence[Any], chosen: list[int], factor: float) -> OtherSizes | None:
        """None for sizes that cannot be: one may have to be a multiple of something, or larger than another."""
        try:
            with compat_inductor.sizes(factor) as sizes:
                problem = translate(snodes, self.costs).problem
        except (ArithmeticError, TypeError, ValueError):
            return None
        before, after = simulate(problem, problem.given), simulate(problem, chosen)
        inside = after.peak <= before.peak * (1 + self.tp.memory_slack)
        return OtherSizes(_by_name(sizes), before.exposed, after.exposed, inside)


def _by_name(sizes: dict[Any, int]) -> dict[str, int]:
    return {str(symbol): value for symbol, value in sizes.items()}


def _compare(made: list[ScheduleRecord], source: str, report: GraphReport) -> None:
    """Notes in the records what was emitted, and warns where that is not what was planned."""
    steps = emitted.emitted_steps(source)
    if len(made) != 1 or steps is None:  # several lists of kernels end up in one text
        return
    (record,) = made
    record.emitted = steps
    if differs := emitted.difference(record.planned, steps):
        text = f"the generated code of the {record.phase} graph is not in the order that was planned: {differs}"
        moved = emitted.communication(record.planned) != emitted.communication(steps)
        report.warn(text) if moved else report.notes.append(text)


def _communicates(gm: torch.fx.GraphModule) -> bool:
    return any(collectives.collective_op(n) or collectives.may_communicate(n) for _, n in walk.nodes(gm))


def _device(gm: torch.fx.GraphModule) -> str:
    """The type of device that the graph computes on: the first that is not the CPU, if any.

    "meta" is none: transformers makes a tensor there to ask for strides.
    """
    values = (value for _, node in walk.nodes(gm) for value in collectives.tensors(walk.example_value(node)))
    return next((value.device.type for value in values if value.device.type not in ("cpu", "meta")), "cpu")


@functools.cache
def _code() -> str:
    """Names the code that decides on an order: another release must not load what this one cached."""
    package = Path(__file__).parent.parent
    files = [package / "compat_inductor.py", *sorted((package / "cost").glob("*.py"))]
    files += sorted((package / "schedule").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _record(phase: str, translation: Translation, found: order.Plan, costs: Costs) -> ScheduleRecord:
    tasks = translation.problem.tasks
    return ScheduleRecord(
        phase=phase,
        compute_seconds=sum(task.seconds for task in tasks),
        transfer_seconds=sum(task.transfer for task in tasks),
        exposed_before=found.before.exposed,
        exposed_after=found.after.exposed,
        peak_before=found.before.peak,
        peak_after=found.after.peak,
        moved=sum(1 for place, index in enumerate(found.order) if place != index),
        source=costs.machine.source,
        planned=emitted.planned_steps(translation.steps, found.order),
        collectives=[
            ScheduledCollective(
                kind=row.kind,
                group=task.queue,
                line=source_line(origin),
                transfer_seconds=task.transfer,
                exposed_before=_stall(translation.problem, found.before, index),
                exposed_after=_stall(translation.problem, found.after, index),
            )
            for index, (task, origin) in enumerate(zip(tasks, translation.origins, strict=True))
            if task.queue and origin is not None and (row := collectives.collective_op(origin)) is not None
        ],
    )


def _stall(problem: Problem, line: Timeline, collective: int) -> float:
    """The seconds that the stream stands still for a collective: those of the waits that end it."""
    return sum(
        seconds
        for index, seconds in line.stalls.items()
        if index == collective or collective in problem.tasks[index].waits_for
    )
