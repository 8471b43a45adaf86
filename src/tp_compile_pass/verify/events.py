"""What a walk over a graph records (`verify.trace`), for the rules to read."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from tp_compile_pass.ir.table import CollectiveOp


@dataclass(eq=False)
class Start:
    """A collective that a walk came by: `node` in the graph `module`, waited for at `waits`. `depends` has a bit for
    every earlier collective of the walk that its data depends on, `index` its own."""

    node: Node
    module: GraphModule
    row: CollectiveOp
    index: int
    group: str
    reduce_op: str
    depends: int = 0
    waits: list[Node] = field(default_factory=list)
    #: Buffers that it fills and that were not waited for yet, of `size` in all; and those that it still reads.
    pending: set[int] = field(default_factory=set)
    size: int = 0
    held: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Unknown:
    """A node that may communicate in a way that the table does not know."""

    node: Node


@dataclass(frozen=True)
class Marker:
    """The edge of a branch of `torch.cond` or of a loop's body: "cond 0", "cond 1", "end"."""

    text: str


@dataclass(frozen=True)
class Conflict:
    """`node` touches memory of `start` while it is in flight. `how`: "read" (of its result), "write" (of its result) or
    "overwrite" (of what it still sends). `partial`: another tensor of the same collective has been waited for."""

    how: str
    node: Node
    start: Start
    partial: bool = False


@dataclass(frozen=True)
class Leaving:
    """`start` is in flight when the graph ends. `through` is "output", "input" (it was started in place on one) or ""
    (nothing refers to it any more). `declared`: its handle, or the output's type, waits wherever it goes."""

    start: Start
    through: str
    declared: bool = False


@dataclass
class Trace:
    """What a walk saw."""

    starts: list[Start] = field(default_factory=list)
    #: Communication in the order in which it is executed, nested graphs inlined.
    order: list[Start | Unknown | Marker] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    leaving: list[Leaving] = field(default_factory=list)
    #: Waits for something that was waited for before, with the collective.
    again: list[tuple[Node, Start]] = field(default_factory=list)
    #: Nested graphs whose arguments could not be matched to their call; findings about such a graph are not certain.
    guessed: list[Node] = field(default_factory=list)
