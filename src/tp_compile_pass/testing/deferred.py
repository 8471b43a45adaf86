"""A process group that starts nothing before `wait()` and poisons results until then.

On a fast link a forgotten or misplaced wait goes unnoticed: the data has arrived anyway. Here it never has. When a
collective is issued, its inputs are set aside and its outputs are filled with NaN. The first `wait()` of any lets what
was issued run (over gloo), and only its own `wait()` publishes a collective's result. So a lost wait shows as NaN, a
read too early as NaN, and a buffer that is written while it is in flight as DeferredError.

    deferred.register()
    dist.init_process_group("deferred", ...)        # or RankPool(2, "deferred", setup=deferred.register)
    work = dist.all_reduce(x, async_op=True)        # x is NaN now
    work.wait()                                     # x is the sum now
    assert deferred.pending() == []                 # what was issued and never waited for

Integers have no NaN and hold the least value of their type (the greatest, if unsigned) instead; booleans hold True. All
ranks issue their collectives in one order per group, as everywhere; they may wait in any order. CPU tensors only. On
torch 2.5 and 2.6 the second wait for a coalesced functional collective hangs, on this as on any group in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tp_compile_pass import compat
from tp_compile_pass.testing.gloo_backed import Collective, GlooBackedGroup, PythonWork, Tensors, writable

NAME = "deferred"


class DeferredError(RuntimeError):
    """A buffer was written while a collective had it in flight. The message names the collective and the buffer."""


_pending: dict[int, DeferredWork] = {}
_issued = 0


def register() -> None:
    """Makes "deferred" a backend that `dist.init_process_group` and `dist.new_group` know. May be called again."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    compat.let_dynamo_trace_process_group(DeferredProcessGroup)


def pending() -> list[str]:
    """What this rank issued and has not waited for, oldest first: "all_reduce of (2, 3) float32 on group 0", …"""
    return [work.label for work in _pending.values()]


def finish_pending() -> None:
    """Waits for everything this rank issued; every rank has to call it."""
    for work in list(_pending.values()):
        work.wait()


def poison(tensor: torch.Tensor) -> None:
    """Fills `tensor` with NaN, or with what stands for it where its type has none."""
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        value: Any = float("nan")
    elif dtype is torch.bool:
        value = True
    else:
        value = torch.iinfo(dtype).min or torch.iinfo(dtype).max
    writable(tensor).fill_(value)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise equality, in which NaN equals itself."""
    left, right = left.contiguous(), right.contiguous()
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.clone(memory_format=torch.contiguous_format)


class DeferredWork(PythonWork):
    """The handle of one collective. Everything that reports completion says no before `wait()`."""

    def __init__(self, collective: Collective) -> None:
        global _issued
        super().__init__(collective.label, collective.writes)
        self._reads, self._writes, self._launch = collective.reads, collective.writes, collective.start
        self._set_aside = [_copy(tensor) for tensor in self._reads]
        for tensor in self._writes:
            poison(tensor)
        self._poisoned = [_copy(tensor) for tensor in self._writes]
        self._written = {tensor.untyped_storage().data_ptr() for tensor in self._writes}
        self._works: list[Any] | None = None
        self._results: Tensors = []
        self._complete: Callable[[], None] | None = None
        self._number = _issued
        _issued += 1
        _pending[self._number] = self  # also keeps this object alive while only C++ holds the work

    def _finish(self) -> None:
        if self._number not in _pending:
            return
        # All that was issued starts, in order: other ranks may wait in another order, and a send ends with its receive.
        for work in list(_pending.values()):
            work._start()
        del _pending[self._number]
        assert self._works is not None and self._complete is not None
        for real in self._works:
            real.wait()
        self._complete()
        self._check_untouched()
        for target, result in zip(self._writes, self._results, strict=True):
            writable(target).copy_(result)
        self._reads, self._writes, self._set_aside, self._poisoned, self._results = [], [], [], [], []
        self._complete = None

    def _start(self) -> None:
        if self._works is None:
            self._results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in self._writes]
            self._works, self._complete = self._launch([_copy(tensor) for tensor in self._set_aside], self._results)

    def _check_untouched(self) -> None:
        for buffer, before in zip(self._writes, self._poisoned, strict=True):
            if not _same(buffer.data, before):
                raise DeferredError(f"an output of {self.label} was written before its wait")
        for buffer, before in zip(self._reads, self._set_aside, strict=True):
            if buffer.untyped_storage().data_ptr() not in self._written and not _same(buffer.data, before):
                raise DeferredError(f"an input of {self.label} was written before its wait")

    def is_completed(self) -> bool:
        return self._number not in _pending


class DeferredProcessGroup(GlooBackedGroup):
    """The group."""

    NAME = NAME

    def _issue(self, collective: Collective) -> DeferredWork:
        return DeferredWork(collective)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> DeferredProcessGroup:
    return DeferredProcessGroup(store, rank, size, timeout)
