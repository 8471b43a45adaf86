"""Finds the order: collectives as early and waits as late as leaves the least exposed time.

List scheduling (Graham 1969) on the machine of `problem.simulate`, near-linear in tasks and edges: at each step the
model's clock says which collectives are done, and of the tasks that may run the one is taken that the next collective
needs soonest; while that one has to wait for data on its way, others fill the gap. Ties keep the given order.

A wider window (how far ahead of the first task left over one may be taken) hides more and holds more memory. Several
are tried, narrow first, and the given order is one of them: a wider one is taken only where it hides clearly more and
stays inside the memory bound. So the result is never worse than the given order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from tp_compile_pass.schedule.problem import COMMUNICATES, Problem, Timeline, simulate

#: An order is preferred to one nearer to the given one where it leaves less than this share of its exposed time.
WORTH = 0.98
#: How far ahead tasks are taken, in tasks; the last one, None, is without limit. The narrow ones swap a gradient for
#: its neighbour and no more, which seldom takes memory.
WINDOWS = (0, 2, 4, 16, 128, None)
#: Of the tasks that may run, how many are looked at for one that fits a gap or the memory.
LOOK = 8
#: Collectives per queue whose results take memory of their own and that are started before one of them is waited for.
PREFETCH = 3


@dataclass
class Plan:
    """The order found (task indices), and what it and the given order cost."""

    order: list[int]
    before: Timeline
    after: Timeline
    #: How far ahead tasks were taken; None for the given order.
    window: str | None = None


def plan(problem: Problem, memory_slack: float, caution: float = 1.0) -> Plan:
    """The best order whose peak memory is at most (1 + `memory_slack`) times that of the given order.

    `caution` is how many times slower than said transfers may be: decisions are made for both figures, and the costs
    in the plan are for transfers as said.
    """
    given = problem.given
    before = simulate(problem, given)
    best = Plan(given, before, before)
    best_slow = simulate(problem, given, caution)
    limit = int(before.peak * (1 + memory_slack))
    shape = _Shape(problem)
    for window in WINDOWS:
        if best_slow.exposed == 0:
            break
        order = _List(problem, shape, limit, len(given) if window is None else window, caution).run()
        for candidate in (_waits_late(problem, order), order):
            line = simulate(problem, candidate)
            slow = simulate(problem, candidate, caution)
            costs = ((line.exposed, best.after.exposed), (slow.exposed, best_slow.exposed))
            if line.peak > limit or any(new > old for new, old in costs):
                continue
            if any(new < WORTH * old for new, old in costs):
                best, best_slow = Plan(candidate, before, line, "all" if window is None else str(window)), slow
            break
    return best


class _Shape:
    """What all tries share: who comes after whom, what each task is urgent for, the memory it takes and gives back."""

    def __init__(self, problem: Problem) -> None:
        tasks = problem.tasks
        count = len(tasks)
        self.before: list[int] = [0] * count
        self.next: list[list[int]] = [[] for _ in range(count)]
        previous = -1
        for index, task in enumerate(tasks):
            needs = {*task.after, *task.waits_for}
            if task.kind in COMMUNICATES:
                if previous >= 0:
                    needs.add(previous)
                previous = index
            self.before[index] = len(needs)
            for earlier in needs:
                self.next[earlier].append(index)
        #: The first communicating task that needs this one; `count` where none does.
        self.urgency: list[int] = [count] * count
        for index in range(count - 1, -1, -1):
            least = index if tasks[index].kind in COMMUNICATES else count
            for later in self.next[index]:
                least = min(least, self.urgency[later])
            self.urgency[index] = least
        self.takes: list[int] = [0] * count
        self.uses: list[list[int]] = [[] for _ in range(count)]
        self.readers: list[int] = []
        for number, buffer in enumerate(problem.buffers):
            holders = set(buffer.users)
            if buffer.producer >= 0:
                self.takes[buffer.producer] += buffer.bytes
                holders.add(buffer.producer)
            self.readers.append(len(holders))
            for holder in () if buffer.kept else holders:
                self.uses[holder].append(number)


@dataclass
class _List:
    """One run of list scheduling."""

    problem: Problem
    shape: _Shape
    limit: int
    window: int
    caution: float
    order: list[int] = field(default_factory=list)

    def run(self) -> list[int]:
        tasks = self.problem.tasks
        self.left = list(self.shape.before)
        self.readers = list(self.shape.readers)
        self.memory = sum(buffer.bytes for buffer in self.problem.buffers if buffer.producer < 0)
        self.clock = 0.0
        self.free: dict[str, float] = {}
        self.done: dict[int, float] = {}
        self.in_flight: dict[str, int] = {}
        self.scheduled = bytearray(len(tasks))
        self.frontier = 0
        self.ready: list[tuple[int, int]] = []  # (urgency, task): may run now, or has run by `by_place`
        self.by_place: list[int] = []  # the same tasks, in the order given
        self.parked: list[int] = []  # may run, but lies beyond the window
        self.pending: list[tuple[float, int]] = []  # (done at, wait): the data is on its way
        self.start = -1  # the collective that may start; there is at most one, for they keep their order
        begin = 0
        for index, task in enumerate(tasks):
            if task.kind == "wall":
                self._segment(begin, index)
                self._execute(index)
                begin = index + 1
        self._segment(begin, len(tasks))
        return self.order

    def _segment(self, begin: int, end: int) -> None:
        """Orders the tasks between two walls."""
        self.end = end
        for index in range(begin, end):
            if self.left[index] == 0:
                self._offer(index)
        for _ in range(begin, end):
            self._execute(self._pick())

    def _offer(self, index: int) -> None:
        task = self.problem.tasks[index]
        if task.kind == "start":
            self.start = index
        elif task.kind == "wait":
            until = max((self.done[start] for start in task.waits_for), default=0.0)
            heapq.heappush(self.pending, (until, index))
        elif index > self.frontier + self.window:
            heapq.heappush(self.parked, index)
        else:
            self._ready(index)

    def _ready(self, index: int) -> None:
        heapq.heappush(self.ready, (self.shape.urgency[index], index))
        heapq.heappush(self.by_place, index)

    def _pick(self) -> int:
        self._refresh()
        if self.start >= 0 and self._may_start(self.start):
            return self.start
        if self.ready:
            index = self._compute()
            if index >= 0:
                return index
        if self.pending:
            return heapq.heappop(self.pending)[1]
        if self.start >= 0:
            return self.start
        if not self.ready:  # only what lies beyond the window is left
            return heapq.heappop(self.parked)
        while True:  # nothing fits the memory: as in the given order
            index = heapq.heappop(self.by_place)
            if not self.scheduled[index]:
                return index

    def _refresh(self) -> None:
        """Moves what has become possible by now into `ready`."""
        while self.frontier < self.end and (
            self.scheduled[self.frontier] or self.problem.tasks[self.frontier].kind == "wait"
        ):
            self.frontier += 1
        while self.parked and self.parked[0] <= self.frontier + self.window:
            self._ready(heapq.heappop(self.parked))
        while self.pending and self.pending[0][0] <= self.clock:
            self._ready(heapq.heappop(self.pending)[1])
        while self.ready and self.scheduled[self.ready[0][1]]:
            heapq.heappop(self.ready)

    def _fits(self, index: int) -> bool:
        return self.memory + self.shape.takes[index] <= self.limit

    def _may_start(self, index: int) -> bool:
        if not self.shape.takes[index]:
            return True
        return self._fits(index) and self.in_flight.get(self.problem.tasks[index].queue, 0) < PREFETCH

    def _compute(self) -> int:
        """Takes a task out of `ready`; -1 where none of those looked at fits the memory."""
        looked = [heapq.heappop(self.ready)]
        gap = self.pending[0][0] - self.clock if self.pending else 0.0
        filling = self.pending and self.shape.urgency[self.pending[0][1]] < looked[0][0]
        if filling or not self._fits(looked[0][1]):
            while self.ready and len(looked) < LOOK:
                entry = heapq.heappop(self.ready)
                if not self.scheduled[entry[1]]:
                    looked.append(entry)
        fitting = [entry for entry in looked if self._fits(entry[1])]
        chosen = fitting[0] if fitting else None
        if filling and fitting:  # the longest that ends before the data arrives, else the shortest
            seconds = {entry: self.problem.tasks[entry[1]].seconds for entry in fitting}
            inside = [entry for entry in fitting if seconds[entry] <= gap]
            chosen = max(inside, key=lambda e: seconds[e]) if inside else min(fitting, key=lambda e: seconds[e])
        for entry in looked:
            if entry is not chosen:
                heapq.heappush(self.ready, entry)
        return chosen[1] if chosen else -1

    def _execute(self, index: int) -> None:
        task = self.problem.tasks[index]
        self.order.append(index)
        self.scheduled[index] = True
        if index == self.start:
            self.start = -1
        if task.kind in ("start", "blocking"):
            begin = max(self.clock, self.free.get(task.queue, 0.0))
            self.done[index] = self.free[task.queue] = begin + self.caution * task.transfer
        if task.kind == "blocking":
            self.clock = self.done[index]
        if task.kind == "start" and self.shape.takes[index]:
            self.in_flight[task.queue] = self.in_flight.get(task.queue, 0) + 1
        for start in task.waits_for:
            self.clock = max(self.clock, self.done[start])
            if self.shape.takes[start]:
                self.in_flight[self.problem.tasks[start].queue] -= 1
        self.clock += task.seconds
        self.memory += self.shape.takes[index]
        for number in self.shape.uses[index]:
            self.readers[number] -= 1
            if not self.readers[number]:
                self.memory -= self.problem.buffers[number].bytes
        for later in self.shape.next[index]:
            self.left[later] -= 1
            if not self.left[later] and later < self.end:
                self._offer(later)


def _waits_late(problem: Problem, order: Sequence[int]) -> list[int]:
    """`order` with each wait moved to just before the first task that needs it, or the next wall."""
    tasks = problem.tasks
    held: dict[int, None] = {}
    late: list[int] = []

    def release(index: int) -> None:
        pending = [index]
        while pending:
            wait = pending[-1]
            more = [earlier for earlier in tasks[wait].after if earlier in held]
            if more:
                pending += more
                continue
            pending.pop()
            if wait in held:
                del held[wait]
                late.append(wait)

    for index in order:
        task = tasks[index]
        if task.kind == "wait":
            held[index] = None
            continue
        for wait in list(held) if task.kind == "wall" else task.after:
            if wait in held:
                release(wait)
        late.append(index)
    for wait in list(held):
        release(wait)
    return late
