"""A process group on a simulated link: real data, at the speed of a link of your choice.

On one machine, communication is memory traffic of the very cores that compute, so there is nothing to overlap. Here a
collective runs on gloo, or a large sum in memory that the ranks share, and its Work completes no earlier than
`latency + bytes / bandwidth` seconds after the link was free, and costs no CPU while it waits: like a network card or a
copy engine. Collectives of one group pass one after the other, those of different groups beside each other, like NCCL's
streams.

    link.register(latency=50e-6, bandwidth=125e6)
    dist.init_process_group("simlink", ...)         # or RankPool(2, "simlink", setup=link.register)

The bytes are what the ring algorithm sends through each rank's link (NCCL tests, doc/PERFORMANCE.md). The time counts
from when this rank issues; where another rank issues later, gloo's own wait comes on top. CPU tensors only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from tp_compile_pass import compat
from tp_compile_pass.testing.gloo_backed import Collective, GlooBackedGroup, PythonWork, Tensors, writable
from tp_compile_pass.testing.shared_memory import SharedSums

NAME = "simlink"


class Clock(Protocol):
    """Where the link's time comes from. Seconds."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The real time."""

    now = staticmethod(time.perf_counter)
    sleep = staticmethod(time.sleep)


@dataclass
class _Link:
    latency: float
    bandwidth: float
    clock: Clock


_link = _Link(50e-6, 125e6, WallClock())


def register(latency: float | None = None, bandwidth: float | None = None, clock: Clock | None = None) -> None:
    """Makes "simlink" a backend that `dist.init_process_group` and `dist.new_group` know.

    `latency` in seconds per collective, `bandwidth` in bytes per second and direction. Where one is None the
    environment decides, SIMLINK_LATENCY_US (microseconds) and SIMLINK_GBPS (gigabits per second), else 50 µs and
    1 Gbit/s. Called again it changes the speed of this process's groups, for what they issue from then on; call it on
    every rank.
    """
    if latency is None:
        latency = float(os.environ.get("SIMLINK_LATENCY_US", "50")) * 1e-6
    if bandwidth is None:
        bandwidth = float(os.environ.get("SIMLINK_GBPS", "1")) * 1e9 / 8
    if latency < 0 or bandwidth <= 0:
        raise ValueError(f"a link needs latency >= 0 and bandwidth > 0, and got {latency} s and {bandwidth} bytes/s")
    _link.latency, _link.bandwidth, _link.clock = latency, bandwidth, clock or WallClock()
    if hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    compat.let_dynamo_trace_process_group(SimulatedLink)


def ring_bytes(kind: str, reads: int, writes: int, ranks: int) -> float:
    """Bytes that one rank's link carries, in the direction that carries more, for a collective of `kind` among `ranks`
    that reads and writes as many bytes on this rank. Source: the "bus bandwidth" factors of NCCL tests; rooted
    collectives are counted at the root, whose link is the narrow one."""
    others = (ranks - 1) / ranks
    return {
        "all_reduce": 2 * others * reads,
        "reduce_scatter": others * reads,
        "all_gather": others * writes,
        "all_to_all": others * max(reads, writes),
        "gather": max(others * writes, (ranks - 1) * reads),
        "scatter": max(others * reads, (ranks - 1) * writes),
        "barrier": 0.0,
    }.get(kind, float(max(reads, writes)))  # reduce, broadcast, send, recv: once through, as a pipeline


class LinkWork(PythonWork):
    """The handle of one collective. `start` and `end`: when it enters and leaves the link, by the link's clock."""

    def __init__(self, collective: Collective, start: float, end: float, clock: Clock) -> None:
        super().__init__(collective.label, collective.writes)
        self.start, self.end, self._clock = start, end, clock
        inputs = [tensor.data.contiguous() for tensor in collective.reads]
        aliased = {id(tensor): copy for tensor, copy in zip(collective.reads, inputs, strict=True)}
        self._buffers = [aliased.get(id(tensor), _dense(tensor)) for tensor in collective.writes]
        self._complete: Callable[[], None] | None
        self._works, self._complete = collective.start(inputs, self._buffers)
        self._inputs = inputs  # gloo reads them until it is done
        _in_flight[id(self)] = self  # keeps this object alive while only C++ holds the work

    def _finish(self) -> None:
        if self._complete is None:  # waited for before; gloo's P2P works would wait for a second message
            return
        for work in self._works:
            work.wait()
        if (left := self.end - self._clock.now()) > 0:  # sleeping for nothing takes a millisecond on some machines
            self._clock.sleep(left)
        self._complete()
        for target, buffer in zip(self._outputs, self._buffers, strict=True):
            if target.data_ptr() != buffer.data_ptr():
                writable(target).copy_(buffer)
        self._complete, self._buffers, self._inputs = None, [], []
        _in_flight.pop(id(self), None)

    def is_completed(self) -> bool:
        arrived = self._complete is None or all(work.is_completed() for work in self._works)
        return arrived and self._clock.now() >= self.end


_in_flight: dict[int, LinkWork] = {}


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Where gloo may write what belongs into `tensor`."""
    return tensor.data if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype)


class SimulatedLink(GlooBackedGroup):
    """The group. Sub-groups have their own queue at the full bandwidth."""

    NAME = NAME

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout)
        self._free = float("-inf")
        self._sums = SharedSums(self._gloo, store, rank, size)

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        sums = op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG  # not `in`: c10d compares in this direction alone
        if sums and self._sums.takes(tensor):
            return self._sums.start(writable(tensor))
        return super()._all_reduce(tensor, op)

    def _issue(self, collective: Collective) -> LinkWork:
        sent = ring_bytes(collective.kind, _bytes(collective.reads), _bytes(collective.writes), self._ranks)
        start = max(_link.clock.now(), self._free)
        self._free = start + _link.latency + sent / _link.bandwidth
        return LinkWork(collective, start, self._free, _link.clock)


def _bytes(tensors: Tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SimulatedLink:
    return SimulatedLink(store, rank, size, timeout)
