"""What torch's functional all_gathers get wrong, by torch version.

**On gloo** they corrupt memory where two of one process group are in flight. Checked on torch 2.5.1 and 2.6.0, which do
not, and on 2.9.1, 2.13.0 and 2.15.0, which do: a loop of nothing but `_c10d_functional.all_gather_into_tensor` and
waits, no torch.compile in it, aborts, crashes or hangs (docs/verify.md has the loop); the releases between are taken to
do so. The functional op goes through the group's `allgather_into_tensor_coalesced`. `dist.all_gather_into_tensor` of
eager code and `all_gather_into_tensor_out` go through `_allgather_base`; neither their loops fail nor those of other
collectives. So the functional op gets a kernel for CPU tensors that takes the second way on gloo: what a rank sends
and receives is the same. Compiling makes functional ops of eager ones, and has more of them in flight.

Left alone is `all_gather_into_tensor_coalesced`, which has the fault, too: capture does not make it, and tensor by
tensor it would not fit to what ranks without our kernel send.

**Groups written in Python** are passed by: see PASSES_BY_PYTHON_GROUPS.
"""

from __future__ import annotations

from typing import Any

import torch

from tp_compile_pass import compat

CORRUPTS_MEMORY = compat.TORCH > (2, 6)
#: Functional ops that do not reach a process group written in Python: they go to the backend it has for the device, if
#: any. Measured on 2.5.1, 2.6.0, 2.9.1 and 2.13.0; 2.15.0 asks the group.
PASSES_BY_PYTHON_GROUPS = ("all_gather_into_tensor_out",) if compat.TORCH < (2, 15) else ()

_OP = "_c10d_functional::all_gather_into_tensor"
_kernels: list[torch.library.Library] = []  # they hold for as long as they are referred to


def gather_apart() -> None:
    """Registers the kernel, once per process and for all its code: memory that eager code corrupts is memory of
    compiled code, too. Where somebody has registered a kernel for CPU before, theirs stays."""
    if _kernels or not CORRUPTS_MEMORY or not torch.distributed.is_available():
        return
    if not torch._C._dispatch_has_kernel_for_dispatch_key(_OP, "CPU"):
        namespace, _, name = _OP.partition("::")
        _kernels.append(torch.library.Library(namespace, "IMPL", "CPU"))
        _kernels[-1].impl(name, torch.compiler.disable(_all_gather_into_tensor))


def _all_gather_into_tensor(input: torch.Tensor, group_size: int, group_name: Any) -> torch.Tensor:
    if not _goes_apart(input, group_name):
        # torch's kernel is one for all devices. It is asked for by a device that has no tensors.
        nowhere = torch._C.DispatchKeySet(torch._C.DispatchKey.IPU)
        op: Any = torch.ops._c10d_functional.all_gather_into_tensor.default
        gathered: torch.Tensor = op.redispatch(nowhere, input, group_size, group_name)
        return gathered
    out = input.new_empty((input.shape[0] * group_size, *input.shape[1:]))
    torch.ops._c10d_functional.all_gather_into_tensor_out.default(input, group_size, group_name, out=out)
    return out


def _goes_apart(tensor: torch.Tensor, group_name: Any) -> bool:
    """Whether the other way takes this tensor (it knows no complex numbers) and leads to the same place (it does not
    ask groups written in Python)."""
    if tensor.dim() == 0 or tensor.is_complex() or (tensor.requires_grad and torch.is_grad_enabled()):
        return False
    group = compat.process_group(group_name) if isinstance(group_name, str) else None
    if group is None or group not in torch.distributed.distributed_c10d._world.pg_map or _is_python(group):
        return False
    return compat.group_backend(group_name, "cpu") == "gloo"


def is_written_in_python(name: str) -> bool:
    """Whether the process group called `name` is of a class that somebody derived from ProcessGroup in Python."""
    group = compat.process_group(name)
    return group is not None and _is_python(group)


def _is_python(group: Any) -> bool:
    return type(group) is not torch.distributed.ProcessGroup
