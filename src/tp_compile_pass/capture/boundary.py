"""AsyncCollectiveTensors that eager code hands to a compiled region.

torch 2.13 and 2.15 resolve such an input inside AOTAutograd with `trigger_wait()`, which returns a tensor without
autograd history: the gradient of everything before the region is lost (an error at best, silently wrong with an eager
residual around the region). Here the region is compiled for the plain tensor instead, and the compiled function is
handed one that carries the history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.ir import walk
from tp_compile_pass.report.record import BoundaryInput
from tp_compile_pass.report.source import source_line

AT_THE_DOOR = "waited at the door"
LEFT_TO_TORCH = "left to torch"

CompiledFn = Callable[..., Any]


@dataclass
class Plan:
    """How the async inputs of one graph enter it: `inputs` is what to compile for, `records` what to report."""

    inputs: list[Any]
    records: list[BoundaryInput]
    _positions: tuple[int, ...] = ()

    def wrap(self, compiled: CompiledFn) -> CompiledFn:
        """`compiled` with the async inputs resolved on each call; the very same object where there are none."""
        return _at_the_door(compiled, self._positions) if self._positions else compiled


def plan(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Plan:
    """Decides for each AsyncCollectiveTensor among `example_inputs` how it enters the graph."""
    inputs, records, positions = list(example_inputs), [], []
    placeholders = gm.graph.find_nodes(op="placeholder")
    for position, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True)):
        if not compat.is_async_collective(value):
            continue
        first = next(iter(node.users), None)
        line = source_line(first) if first is not None else None
        if False:
            reason = f"torch {torch.__version__} traces through it"
            records.append(BoundaryInput(node.name, LEFT_TO_TORCH, reason, line))
            continue
        inputs[position] = compat.with_context_of(value, resolve(value))
        example = walk.example_value(node)
        if compat.is_async_collective(example):
            node.meta["example_value"] = example.elem
        positions.append(position)
        records.append(BoundaryInput(node.name, AT_THE_DOOR, "", line))
    return Plan(inputs, records, tuple(positions))


class _Resolve(torch.autograd.Function):
    """AsyncCollectiveTensor → the plain tensor it stands for; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> torch.Tensor:
        return tensor.trigger_wait().detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad


def resolve(tensor: Any) -> torch.Tensor:
    """Waits for an AsyncCollectiveTensor and returns the plain tensor, on the same storage and with the same history."""
    if not tensor.requires_grad:
        return tensor.trigger_wait()  # type: ignore[no-any-return]
    with torch.enable_grad():
        return _Resolve.apply(tensor)  # type: ignore[no-any-return]


def _at_the_door(compiled: CompiledFn, positions: tuple[int, ...]) -> CompiledFn:
    """`compiled`, called with the inputs at `positions` resolved."""
    is_async = compat.is_async_collective

    def call(*args: Any) -> Any:
        arguments = list(args)
        with_history = []
        for position in positions:
            given = arguments[position]
            if is_async(given):
                plain = arguments[position] = resolve(given)
                if plain.requires_grad:
                    with_history.append((given, plain, plain.grad_fn))
        result = compiled(*arguments)
        for given, plain, grad_fn in with_history:
            if plain.grad_fn is not grad_fn:  # mutated inside: the data is shared already, the history is not
                given.copy_(plain)
        return result

    return call
