"""Functional all_gathers on gloo, which corrupt memory where two of one process group are in flight.

Checked on torch 2.5.1 and 2.6.0, which do not, and on 2.9.1, 2.13.0 and 2.15.0, which do: with four in flight a loop of
nothing but `_c10d_functional.all_gather_into_tensor` and waits, no torch.compile in it, aborts, crashes or hangs within
3,000 rounds (docs/verify.md has the loop). The functional op goes through the group's
`allgather_into_tensor_coalesced`; `dist.all_gather_into_tensor` of eager code and `all_gather_into_tensor_out` go
through `_allgather_base`, and neither their loops fail nor those of other collectives. So the functional ops get
kernels for CPU tensors that take the second way on gloo. Compiling makes functional ops of eager ones, and has more of
them in flight.
"""

from __future__ import annotations

from typing import Any

import torch

from tp_compile_pass import compat

NAMESPACE = "_c10d_functional"
CORRUPTS_MEMORY = compat.TORCH > (2, 6)

_kernels: list[torch.library.Library] = []  # they hold for as long as they are referred to


def gather_apart() -> None:
    """Registers the kernels, once per process and for all its code: memory that eager code corrupts is memory of
    compiled code, too. Where somebody has registered kernels for CPU before, theirs stay."""
    if _kernels or not CORRUPTS_MEMORY or not torch.distributed.is_available():
        return
    library = torch.library.Library(NAMESPACE, "IMPL", "CPU")
    for kernel in (all_gather_into_tensor, all_gather_into_tensor_coalesced):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{kernel.__name__}", "CPU"):
            library.impl(kernel.__name__, kernel)
    _kernels.append(library)


def all_gather_into_tensor(input: torch.Tensor, group_size: int, group_name: Any) -> torch.Tensor:
    return all_gather_into_tensor_coalesced([input], group_size, group_name)[0]


def all_gather_into_tensor_coalesced(
    inputs: list[torch.Tensor], group_size: int, group_name: Any
) -> list[torch.Tensor]:
    outs = [tensor.new_empty((tensor.shape[0] * group_size, *tensor.shape[1:])) for tensor in inputs]
    name = group_name if isinstance(group_name, str) else compat.group_name(group_name)
    # Gradients are the business of the functional op's own autograd kernel, where it has one.
    with torch.no_grad():
        if compat.group_backend(name, "cpu") == "gloo":
            for tensor, out in zip(inputs, outs, strict=True):
                torch.ops._c10d_functional.all_gather_into_tensor_out.default(tensor, group_size, group_name, out=out)
        else:  # as the kernel for all devices does, which cannot be called from here; it sees groups written in Python
            work = compat.process_group(name).allgather_into_tensor_coalesced(outs, inputs)
            for out in outs:
                torch._C._distributed_c10d._register_work(out, work)
    return outs
