"""The figures that this process decides by: the same on every rank.

Rank 0 publishes its calibration through the default process group's store when it first compiles, or that it has none,
and the other ranks take what it published. A rank that compiles earlier waits for that a few seconds at most, once, and
goes on with defaults, which the report says. Then its kernels may be ordered otherwise than its peers'. That costs time
and is safe: collectives keep the order that the graph gives them, on every rank and by whatever figures.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import torch

from tp_compile_pass import compat
from tp_compile_pass.cost import calibration, defaults, measure
from tp_compile_pass.cost.calibration import Calibration
from tp_compile_pass.cost.model import Costs, Link

#: Seconds that a rank waits for rank 0's figures, and between two looks.
TIMEOUT, PAUSE = 5.0, 0.02


def link_of(costs: Costs, device: str, group: str) -> Link:
    """The connection of the process group called `group`."""
    backend = compat.group_backend(group, device)
    return costs.links.get(backend) or defaults.link(device, backend)


def publish(device: str) -> None:
    """Makes rank 0's figures known; on other ranks nothing."""
    if torch.distributed.get_rank() == 0:
        _session().figures(device)


def costs(device: str) -> tuple[Costs, str]:
    """What decisions about code for `device` are made by, and a remark where it may differ between ranks."""
    found, remark = _session().figures(device)
    return (found.costs() if found else defaults.costs(device, torch.get_num_threads())), remark


def digest(costs: Costs) -> str:
    """Names the figures, for the key of a cache."""
    return hashlib.sha256(repr(costs).encode()).hexdigest()[:16]


class _Session:
    """What is known of the default process group that is there now."""

    def __init__(self, world: Any, number: int) -> None:
        self.world, self.number = world, number
        self.store = compat.default_store(f"tp_compile_pass/costs/{number}")
        self.known: dict[str, tuple[Calibration | None, str]] = {}

    def figures(self, device: str) -> tuple[Calibration | None, str]:
        if device not in self.known:
            self.known[device] = self._find(device)
        return self.known[device]

    def _find(self, device: str) -> tuple[Calibration | None, str]:
        if self.store is None or torch.distributed.get_rank() == 0:
            own = calibration.load(measure.key(device))
            if self.store is not None:
                self.store.set(device, own.model_dump_json() if own else "")
            return own, ""
        deadline = time.monotonic() + TIMEOUT
        while not self.store.check([device]):
            if time.monotonic() > deadline:
                return None, f"rank 0 published no cost figures within {TIMEOUT:g} s: this rank decides by defaults"
            time.sleep(PAUSE)
        text = self.store.get(device)
        return (calibration.parse(text) if text else None), ""


_current: _Session | None = None


def _session() -> _Session:
    global _current
    world = compat.world_group()
    if _current is None or _current.world is not world:
        _current = _Session(world, _current.number + 1 if _current is not None else 0)
    return _current
