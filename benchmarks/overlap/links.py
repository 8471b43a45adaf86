"""The links that ranks can be put on. Each: a backend, what a rank does first, and how it sets its link's speed."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from tp_compile_pass.testing import link

LATENCY = 50e-6  # seconds, of the simulated link


@dataclass(frozen=True)
class Link:
    """`setup` and `set_speed` (bytes per second) run on every rank and are module-level functions."""

    backend: str
    setup: Callable[[], Any]
    set_speed: Callable[[float], Any]
    latency: float
    env: tuple[tuple[str, str], ...] = ()


def pin() -> None:
    """One core for each rank: what a rank does while it waits takes nothing from the other."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})


def _simulated() -> None:
    pin()
    link.register(latency=LATENCY)


def _set_simulated(bandwidth: float) -> None:
    link.register(latency=LATENCY, bandwidth=bandwidth)


SIMULATED = Link(link.NAME, _simulated, _set_simulated, LATENCY)


def sent_bytes(elements: list[int], world: int) -> float:
    """Bytes that all_reduces of so many float32 send through a rank's link."""
    return sum(link.ring_bytes("all_reduce", 4 * count, 4 * count, world) for count in elements)


@functools.cache  # its name is in the graphs: another one each time would miss Inductor's cache
def no_link() -> dist.ProcessGroup:
    """A group of all ranks whose collectives do nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 (registers it)

    return dist.new_group(backend="fake")
