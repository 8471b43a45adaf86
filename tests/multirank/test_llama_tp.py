"""A Llama under the usual tensor-parallel plan trains compiled as it trains in eager.

The plan is torchtitan's: row-parallel embedding, sequence-parallel norms, column- and row-parallel projections. The
embedding and every block are joined by async tensors and DTensors, which is what a compiled block is handed.
"""

import pytest
import torch
import torch.nn.functional as F
from llama_training import VOCABULARY, assert_same, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WIDTH, HEADS = 32, 4


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (project(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for project in self._in())
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(attended.transpose(1, 2).reshape(batch, length, -1))

    def _in(self):
        return self.q, self.k, self.v


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = Attention(), MLP(), Norm(), Norm()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.output = Norm(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def parallelize(model, mesh):
    """torchtitan's plan for a model whose parts have the names used above."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    gathered = dict(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan = {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(**gathered),
            "mlp": PrepareModuleInput(**gathered),
            "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        plan |= {f"attention.{name}": ColwiseParallel() for name in "qkv"}
        plan |= {f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
        parallelize_module(layer, mesh, plan)


def small_llama(how, inner):
    torch.manual_seed(0)
    model = Llama()
    parallelize(model, init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    return train(model, model.layers, model, how, inner)


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["layers", "model"])
def test_two_ranks(ranks2, how):
    assert_same(ranks2, small_llama, how)


def test_two_ranks_through_inductor(ranks2):
    assert_same(ranks2, small_llama, "layers", "inductor")


@pytest.mark.parametrize("how", ["layers", "model"])
def test_four_ranks(ranks4, how):
    assert_same(ranks4, small_llama, how)
