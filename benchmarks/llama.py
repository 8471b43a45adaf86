"""A Llama under the usual tensor-parallel plan: column-parallel q, k, v, gate and up, row-parallel o and down."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, HEADS = 128, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def llama(layers: int, mesh: DeviceMesh) -> nn.Module:
    """Takes (batch, tokens, WIDTH)."""
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = {"q": column, "k": column, "v": column, "o": row, "gate": column, "up": column, "down": row}
    model = nn.Sequential(*(Block() for _ in range(layers)))
    for block in model:
        parallelize_module(block, mesh, plan)
    return model


def batch() -> torch.Tensor:
    return torch.randn(2, 32, WIDTH)
