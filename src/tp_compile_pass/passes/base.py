"""What a pass is, and what it is given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from tp_compile_pass.options import TPOptions
from tp_compile_pass.report.record import PassResult


@dataclass
class PassContext:
    """What a pass may decide by. `phase` is "captured" (Dynamo's graph), "forward", "backward" or "inference"."""

    options: TPOptions
    phase: str
    #: Collectives that a pass took out on purpose, each with what now stands for it (None: nothing), by `verify`'s
    #: keys: the id of the GraphModule and the node's name.
    replaced: dict[tuple[int, str], str | None] = field(default_factory=dict)
    _originals: list[tuple[torch.fx.GraphModule, torch.fx.Graph]] = field(default_factory=list)
    _at_first_edit: Callable[[], None] | None = None

    def at_first_edit(self, look: Callable[[], None]) -> None:
        """`look` is called once, before anything is edited; not at all where nothing is."""
        self._at_first_edit = look

    def before_edit(self, gm: torch.fx.GraphModule) -> None:
        """A pass calls this before its first edit of a GraphModule (a nested one too), so that the pipeline can put
        the graph back should the pass fail half way. Graphs that no pass edits are never copied."""
        if self._at_first_edit is not None:
            look, self._at_first_edit = self._at_first_edit, None
            look()
        if all(edited is not gm for edited, _ in self._originals):
            self._originals.append((gm, _copied(gm.graph)))

    def replaces(self, gm: torch.fx.GraphModule, node: torch.fx.Node, instead: torch.fx.Node | None) -> None:
        """A pass says so when it takes the collective `node` out of `gm`; the verifier takes any other loss for a
        mistake. `instead` is a collective that `gm` has already, or a new one in the same place, or nothing."""
        self.replaced[id(gm), node.name] = instead.name if instead is not None else None

    def undo(self) -> None:
        """Puts back every graph announced to `before_edit`."""
        for gm, graph in self._originals:
            gm.graph = graph
        self._originals.clear()
        self.replaced.clear()

    def keep(self) -> None:
        """Makes the edits since the last `keep` final. Nested graphs are called, not interpreted, so their code must
        follow their graph."""
        for gm, _ in self._originals:
            gm.graph.lint()
            gm.recompile()
        self._originals.clear()
        self.replaced.clear()


def _copied(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A copy that also has what was set on the nodes as attributes: AOTAutograd reads `_dynamo_source` there."""
    copied = copy.deepcopy(graph)
    for old, new in zip(graph.nodes, copied.nodes, strict=True):
        for name, value in vars(old).items():
            if name not in vars(new):
                setattr(new, name, value)
    return copied


class Pass(Protocol):
    """A graph pass: finds places it can prove itself right for, edits them, and says what it did and what it left.

    A pass only edits the graph (it never runs it), recurses into nested GraphModules itself (`ir.walk`), keeps node
    metadata, is deterministic and decides the same on every rank. Near-linear in nodes.
    """

    @property
    def name(self) -> str: ...

    def apply(self, gm: torch.fx.GraphModule, context: PassContext) -> PassResult: ...
