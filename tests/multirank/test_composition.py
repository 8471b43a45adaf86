"""tp_inductor together with what else calls a backend: compiled autograd, DDP's optimizer, compilation by layers."""

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tp_compile_pass

pytestmark = pytest.mark.matrix
AOT = {"backend": "tp_inductor", "options": {"tp.inner": "aot_eager"}}


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def tp_mlp():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(MLP(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def gradients(model, out):
    model.zero_grad()
    out.sum().backward()
    grads = [p.grad for p in model.parameters()]
    return [out.detach() * 1] + [g.to_local() * 1 if hasattr(g, "to_local") else g.clone() for g in grads]


class Reduced(torch.autograd.Function):
    """Megatron's reduce from the tensor-parallel region: all_reduce forward, the gradient as it comes."""

    @staticmethod
    def forward(ctx, x):
        return all_reduce(x, "sum", dist.group.WORLD) * 1

    @staticmethod
    def backward(ctx, grad):
        return grad


class RowParallel(MLP):
    def forward(self, x):
        return Reduced.apply(super().forward(x))


def with_compiled_autograd():
    # Not DTensor: compiled autograd does not take it, with any backend.
    torch.manual_seed(0)
    model, x = RowParallel(), torch.arange(16.0).reshape(2, 8) + dist.get_rank()
    want = gradients(model, model(x))
    compiled = torch.compile(model, **AOT)
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = torch.compile(lambda: gradients(model, compiled(x)), **AOT)
        torch.testing.assert_close(step(), want)
    return len(tp_compile_pass.reports())


def test_compiled_autograd(ranks2):
    for graphs in ranks2.run(with_compiled_autograd):
        assert graphs > 1, "the backward of compiled autograd is a graph of its own"


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(512, 512) for _ in range(3))

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def under_ddp():
    torch.manual_seed(0)
    model, x = Wide(), torch.ones(2, 512) * dist.get_rank()
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)  # one layer's size, and the least that torch takes
    want = gradients(model, ddp(x))
    tp_compile_pass.report.record.clear_reports()
    compiled = torch.compile(ddp, **AOT)
    torch.testing.assert_close(gradients(model, compiled(x)), want)
    return len(tp_compile_pass.reports())


def test_ddp_calls_the_backend_once_per_bucket(ranks2):
    for graphs in ranks2.run(under_ddp):
        assert graphs > 1


def by_layer():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, x = nn.Sequential(MLP(), MLP()), torch.arange(16.0).reshape(2, 8)
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(use_local_output=False)})
        layer.register_forward_hook(lambda module, args, out: out.full_tensor())
    want = gradients(model, model(x))
    for layer in model:
        layer.compile(fullgraph=True, **AOT)
    torch.testing.assert_close(gradients(model, model(x)), want)
    return len(tp_compile_pass.reports())


def test_layers_compiled_one_by_one(ranks2):
    ranks2.run(by_layer)
