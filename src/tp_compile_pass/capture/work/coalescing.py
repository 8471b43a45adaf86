"""`dist._coalescing_manager`: collectives that are waited for together.

Each starts where the user wrote it, a little earlier than in eager, where the manager starts them all as it is left;
none is visible before the manager is waited for, or, if it is synchronous, left.
"""

from __future__ import annotations

from typing import Any

from tp_compile_pass import compat_dynamo
from tp_compile_pass.compat_dynamo import Call, Variable


class CoalescedWorks:
    """What `with dist._coalescing_manager(...) as manager` binds."""

    def __init__(self, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self.works: Any = []

    def __enter__(self) -> CoalescedWorks:
        return self

    def __exit__(self, *exc: object) -> None:
        left()
        if not self._asynchronous:
            self.wait()

    def append(self, work: Any = None) -> None:
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        for work in self.works:
            work.wait()


def left() -> None:
    """Called when the manager is left, for tracing to see it."""


def _new(asynchronous: bool) -> CoalescedWorks:
    return CoalescedWorks(asynchronous)


def enter(call: Call) -> Variable:
    manager = call.inline(_new, bool(call.constant("async_ops")))
    compat_dynamo.notes(call.tx, "managers").append(manager)
    return manager


def leave(call: Call) -> Variable:
    compat_dynamo.notes(call.tx, "managers").pop()
    return compat_dynamo.variable(call.tx, None)


def joined(call: Call, handle: Variable) -> bool:
    """Hands `handle` to the manager that is open, if one is."""
    managers = compat_dynamo.notes(call.tx, "managers")
    if managers:
        call.inline(_append, managers[-1], handle)
    return bool(managers)


def _append(manager: CoalescedWorks, handle: Any) -> None:
    manager.append(handle)
