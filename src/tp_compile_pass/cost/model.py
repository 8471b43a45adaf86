"""Seconds of a collective and of a kernel, as functions of sizes: sympy expressions where sizes are symbols.

A collective costs a latency per step of its algorithm plus its bytes over the bandwidth (the alpha-beta model, Hockney
1994, with ring volumes: Patarasuk and Yuan 2009). A kernel costs what the slower of arithmetic and memory costs (the
roofline model, Williams et al. 2009), plus its launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: A number, or a sympy expression in the graph's symbols.
Number = Any


@dataclass(frozen=True)
class Link:
    """What a process group's connection does: seconds `latency` per step of a collective, and the bytes per second
    `bandwidth` that each rank sends. `source` says where the figures come from."""

    latency: float
    bandwidth: float
    source: str


@dataclass(frozen=True)
class Machine:
    """What one process computes with: matrix-product `flops` per second, bytes per second from and to `memory`, and
    the seconds that a kernel's `launch` takes."""

    flops: float
    memory: float
    launch: float
    source: str


@dataclass(frozen=True)
class Costs:
    """The figures that decisions are made by. `links` are by process-group backend. `caution` is how many times slower
    than said a transfer may turn out: high for defaults, low for what was measured."""

    machine: Machine
    links: dict[str, Link] = field(default_factory=dict)
    caution: float = 1.0


def steps(kind: str, ranks: Number) -> Number:
    """The latency-bound steps of a collective over `ranks` ranks, one after the other."""
    if kind == "all_reduce":  # a reduce-scatter and an all-gather around the ring
        return 2 * (ranks - 1)
    if kind in ("all_gather", "reduce_scatter"):
        return ranks - 1
    return ranks - ranks + 1  # sent directly, all at once


def transfer_seconds(kind: str, ranks: Number, wire_bytes: Number, link: Link) -> Number:
    """Seconds that a collective over `ranks` ranks takes, of which each sends `wire_bytes` bytes."""
    return steps(kind, ranks) * link.latency + wire_bytes / link.bandwidth


def kernel_seconds(flops: float, memory_bytes: float, machine: Machine) -> float:
    """Seconds of a kernel that does `flops` operations of a matrix product and moves `memory_bytes` bytes."""
    return max(flops / machine.flops, memory_bytes / machine.memory) + machine.launch
