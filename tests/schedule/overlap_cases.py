"""Programs with something to overlap, as users write them; each returns tensors, and all run on two ranks."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

c10d = torch.ops._c10d_functional
WIDTH = 16


def weights(count):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(WIDTH, WIDTH, generator=generator) / 4 for _ in range(count)]


def inputs(rows=8):
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(rows, WIDTH, generator=generator)


def halves(x, *w):
    """Two halves of the batch, interleaved by hand."""
    parts, pending = list(x.chunk(2)), [None, None]
    for weight in w:
        for i in range(2):
            if pending[i] is not None:
                parts[i] = (parts[i] + pending[i]) / 2
            pending[i] = funcol.all_reduce(torch.relu(parts[i] @ weight), "sum", dist.group.WORLD)
    return torch.cat([part + reduced for part, reduced in zip(parts, pending, strict=True)])


def beside(x, a, b, c):
    """A product that needs no communication, after the wait."""
    reduced = funcol.all_reduce(x @ a, "sum", dist.group.WORLD)
    return (reduced + 1) @ b, (x @ b) @ c


def gathered(x, a, b, c):
    """Out-of-place collectives, whose input is read until the wait and whose results take memory."""
    group = dist.group.WORLD
    rows = funcol.all_gather_tensor(x @ a, 0, group)
    other = (x * 2) @ b
    shard = funcol.reduce_scatter_tensor(rows @ c, "sum", 0, group)
    return shard + other, (other @ a).relu()


def several(x, a, b, c):
    """A coalesced all_reduce, whose results are waited for one by one."""
    outs = funcol.all_reduce_coalesced([x @ a, x @ b], "sum", dist.group.WORLD)
    beside = (x @ c) @ a
    return outs[0] * 2, beside, outs[1] + 1


def wait_result_ignored(x, a, b, c):
    """The wait's result is not used: readers go on with the collective's own output, and with a view of it."""
    out = c10d.all_reduce(x @ a, "sum", dist.group.WORLD.group_name)
    c10d.wait_tensor(out)
    return out + 1, (x @ b) @ c, out.view(-1)[:4] * 2


def in_place(x, a, b, c):
    """A `Work` on a buffer of the user's, read through a view made before the collective."""
    buffer = x @ a
    view = buffer[2:]
    work = dist.all_reduce(buffer, async_op=True)
    other = (x @ b) @ c
    work.wait()
    return view + 1, other, buffer * 2


def input_overwritten(x, a, b, c):
    """What is sent is overwritten after the wait, and must not be before."""
    sent = x @ a
    rows = funcol.all_gather_tensor(sent, 0, dist.group.WORLD)
    other = (x @ b) @ c
    total = rows.sum(0)
    sent.mul_(0)
    return total, sent + other


def random_numbers(x, a, b, c):
    """Draws that must stay in their order, on both sides of a wait."""
    first = torch.bernoulli(torch.full_like(x, 0.5))
    reduced = funcol.all_reduce(x @ a, "sum", dist.group.WORLD)
    second = torch.bernoulli(torch.full_like(x, 0.5))
    third = torch.bernoulli(torch.full_like(x, 0.5))
    return reduced * first, (x * second) @ b, third @ c


PROGRAMS = {
    program.__name__: program
    for program in (halves, beside, gathered, several, wait_result_ignored, in_place, input_overwritten, random_numbers)
}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def tensor_parallel(layers=3):
    """Column- and row-parallel layers, by the usual plan."""
    torch.manual_seed(0)
    model = nn.Sequential(*(MLP() for _ in range(layers)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sharded_product(x, w):
    """DTensors all the way: the gradient of `x` is a partial sum, reduced beside the gradient of `w`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(x, mesh, [Replicate()]) @ distribute_tensor(w, mesh, [Shard(1)])
