"""What is to be ordered, as plain data, and what an order costs by the model.

The machine of the model: one stream computes, in the order of the list; each process group has a queue that carries out
its collectives one after the other, beside the stream; a wait stops the stream until its collective is done. This
holds for CUDA streams and for blocking waits on the CPU alike. Time that the stream stands still is exposed
communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

#: "start" begins a collective, "wait" ends one or several. "blocking" is a collective that has ended when it returns.
#: Nothing moves past a "wall": it may communicate in a way that nobody knows.
Kind = Literal["compute", "start", "wait", "blocking", "wall"]
COMMUNICATES = frozenset({"start", "blocking", "wall"})


@dataclass(frozen=True, slots=True)
class Task:
    """One step of the program. Tasks are named by their place in `Problem.tasks`, which is the order given.

    `after` are the tasks that must come before this one. `seconds` is the time it keeps the stream busy; `transfer`,
    for a collective, the seconds that its process group's queue `queue` is busy with it. `waits_for` are the starts
    that a wait ends.
    """

    name: str
    kind: Kind = "compute"
    after: tuple[int, ...] = ()
    seconds: float = 0.0
    queue: str = ""
    transfer: float = 0.0
    waits_for: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of `bytes` bytes: taken when `producer` runs (-1: it is there from the beginning), given back after the
    last of `users` has run, or, where it is `kept`, not at all."""

    bytes: int
    producer: int
    users: tuple[int, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class Problem:
    """The tasks in the order given, which must be a valid one, and their memory."""

    tasks: Sequence[Task]
    buffers: Sequence[Buffer] = ()

    @property
    def given(self) -> list[int]:
        return list(range(len(self.tasks)))


@dataclass
class Timeline:
    """What an order costs: `total` and `exposed` seconds, `peak` bytes, and per wait (or blocking collective) the
    seconds that the stream stands still."""

    total: float = 0.0
    exposed: float = 0.0
    peak: int = 0
    stalls: dict[int, float] = field(default_factory=dict)


def simulate(problem: Problem, order: Sequence[int], caution: float = 1.0) -> Timeline:
    """Runs `order` by the model; transfers take `caution` times as long as said."""
    line = Timeline(peak=peak_bytes(problem, order))
    free: dict[str, float] = {}
    done: dict[int, float] = {}
    clock = 0.0
    for index in order:
        task = problem.tasks[index]
        until = clock
        if task.kind == "start" or task.kind == "blocking":
            done[index] = free[task.queue] = max(clock, free.get(task.queue, 0.0)) + caution * task.transfer
        if task.kind == "blocking":
            until = done[index]
        elif task.kind == "wait":
            until = max((done[start] for start in task.waits_for), default=clock)
        if until > clock:
            line.stalls[index] = until - clock
            line.exposed += until - clock
            clock = until
        clock += task.seconds
    line.total = clock
    return line


def peak_bytes(problem: Problem, order: Sequence[int]) -> int:
    """The most memory that is taken at once."""
    place = [0] * len(order)
    for position, index in enumerate(order):
        place[index] = position
    change = [0] * (len(order) + 1)
    taken = 0
    for buffer in problem.buffers:
        if buffer.producer < 0:
            taken += buffer.bytes
        else:
            change[place[buffer.producer]] += buffer.bytes
        if not buffer.kept:
            last = max((place[user] for user in buffer.users), default=-1)
            last = max(last, place[buffer.producer]) if buffer.producer >= 0 else last
            change[last + 1] -= buffer.bytes  # given back after its last user
    peak = taken
    for step in change:
        taken += step
        peak = max(peak, taken)
    return peak


def flaws(problem: Problem, order: Sequence[int]) -> Iterator[str]:
    """What makes `order` invalid: a task lost or twice, one before what it depends on, collectives in another order
    than given, or anything that moved past a wall."""
    tasks = problem.tasks
    if sorted(order) != problem.given:
        yield "it is not a permutation of the tasks"
        return
    place = {index: position for position, index in enumerate(order)}
    for index, task in enumerate(tasks):
        for earlier in (*task.after, *task.waits_for):
            if place[earlier] >= place[index]:
                yield f"{task.name} comes before {tasks[earlier].name}, which it needs"
    communicating = [index for index in order if tasks[index].kind in COMMUNICATES]
    if communicating != sorted(communicating):
        yield "collectives are in another order"
    highest = -1  # of the tasks before; the first n are 0 … n-1 exactly where the highest is n-1
    for position, index in enumerate(order):
        if tasks[index].kind == "wall" and not position - 1 == highest == index - 1:
            yield f"something moved past {tasks[index].name}"
        highest = max(highest, index)
