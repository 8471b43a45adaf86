"""What a row of the catalogue is, and the registry of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

Fn = Callable[..., Any]

#: What the rows are about, in the order in which they are shown.
LAZY, WORK, BOUNDARY, MODULE = "AsyncCollectiveTensor", "Work", "boundary", "tensor-parallel module"
KINDS = (LAZY, WORK, BOUNDARY, MODULE)


@dataclass(frozen=True)
class CallSite:
    """One row. `make(mesh)` builds, on each rank, what is compiled; `code` is its gist in one line.

    `before(mesh)`, where given, makes eager code that turns the row's input into the compiled function's argument.
    With `backward` the result is also differentiated and the gradient of the input compared.
    """

    name: str
    kind: str
    code: str
    make: Callable[[DeviceMesh], Fn]
    before: Callable[[DeviceMesh], Fn] | None = None
    backward: bool = False


CALL_SITES: dict[str, CallSite] = {}


def call_site(kind: str, code: str, **extra: Any) -> Callable[[Callable[[DeviceMesh], Fn]], Callable[[DeviceMesh], Fn]]:
    """Files the decorated function as the row of its name."""

    def file(make: Callable[[DeviceMesh], Fn]) -> Callable[[DeviceMesh], Fn]:
        CALL_SITES[make.__name__] = CallSite(make.__name__, kind, code, make, **extra)
        return make

    return file


def sharded(x: torch.Tensor, mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(x, mesh, [Shard(0)], run_check=False)


def gathered(x: torch.Tensor, mesh: DeviceMesh) -> Any:
    """What a tensor-parallel layer returns: in eager an AsyncCollectiveTensor whose all-gather is under way."""
    return sharded(x, mesh).redistribute(mesh, [Replicate()], async_op=True).to_local()
