"""Rows on whole tensor-parallel modules, and on collectives that are under way when compiled code is entered."""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tp_compile_pass.demo.catalogue.rows import BOUNDARY, MODULE, call_site, gathered, sharded


def _lazy_input(mesh):
    group = mesh.get_group()
    return lambda x: (funcol.all_reduce(x, "sum", group),)


def _lazy_input_with_history(mesh):
    return lambda x: (gathered(x * 2, mesh),)


def _lazy_dtensor_input(mesh):
    return lambda x: (sharded(x, mesh).redistribute(mesh, [Replicate()], async_op=True),)


def _work_input(mesh):
    group = mesh.get_group()

    def start(x):
        t = x * 2
        return t, dist.all_reduce(t, group=group, async_op=True)

    return start


@call_site(BOUNDARY, "compiled(x) with a lazy x from eager code", before=_lazy_input)
def lazy_input(mesh):
    def fn(x):
        return x * 2 + 1

    return fn


@call_site(BOUNDARY, "compiled(x), and x.wait() inside", before=_lazy_input)
def lazy_input_waited(mesh):
    def fn(x):
        if isinstance(x, AsyncCollectiveTensor):
            x = x.wait()
        return x * 2 + 1

    return fn


@call_site(BOUNDARY, "compiled(x) with a lazy x, then backward", before=_lazy_input_with_history, backward=True)
def lazy_input_backward(mesh):
    def fn(x):
        return x * x + 1

    return fn


@call_site(BOUNDARY, "compiled(dtensor) with a lazy local tensor", before=_lazy_dtensor_input)
def lazy_dtensor_input(mesh):
    def fn(x):
        return (x * 2 + 1).to_local()

    return fn


@call_site(BOUNDARY, "compiled(t, w): w.wait() for a Work started in eager code", before=_work_input)
def work_input(mesh):
    def fn(t, work):
        work.wait()
        return t + 1

    return fn


class MLP(nn.Module):
    """Two linear layers, the first column-parallel and the second row-parallel, as in every transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 8)
        self.down = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(torch.relu(self.up(x)))


class WaitingMLP(MLP):
    """An MLP that ends as the row-parallel layers of inference engines do."""

    def forward(self, x: torch.Tensor) -> Any:
        outputs = super().forward(x)
        if isinstance(outputs, AsyncCollectiveTensor):
            return outputs.wait()
        return outputs


def parallelized(mlp: MLP, mesh: DeviceMesh, *, sequence: bool = False) -> nn.Module:
    """`mlp` under Megatron's plan; with `sequence`, inputs and outputs are sharded too (sequence parallelism)."""
    up = ColwiseParallel(input_layouts=Shard(0)) if sequence else ColwiseParallel()
    down = RowwiseParallel(output_layouts=Shard(0)) if sequence else RowwiseParallel()
    return parallelize_module(mlp, mesh, {"up": up, "down": down})


@call_site(MODULE, "ColwiseParallel, RowwiseParallel", backward=True)
def tp_mlp(mesh):
    torch.manual_seed(0)
    return parallelized(MLP(), mesh)


@call_site(MODULE, "RowwiseParallel, then isinstance and x.wait()")
def tp_mlp_waiting(mesh):
    torch.manual_seed(0)
    return parallelized(WaitingMLP(), mesh)


@call_site(MODULE, "sequence parallel: Shard(0) in and out", backward=True)
def sequence_parallel_mlp(mesh):
    torch.manual_seed(0)
    return parallelized(MLP(), mesh, sequence=True)


@call_site(MODULE, "dtensor.full_tensor()")
def full_tensor(mesh):
    def fn(x):
        return sharded(x, mesh).full_tensor() + 1

    return fn
