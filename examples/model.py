"""A small tensor-parallel model, and a few training steps whose losses and gradients can be compared."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH, STEPS = 32, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same weights on every rank
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def shard(model: Model, mesh: DeviceMesh) -> Model:
    """Shards each block's two matrices over the ranks of `mesh`: an all_reduce ends the block."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def batches() -> list[Tensor]:
    """The same batches on every rank, as tensor parallelism wants them."""
    torch.manual_seed(1)
    return [torch.randn(8, WIDTH) for _ in range(STEPS)]


def full(tensor: Tensor) -> Tensor:
    """The whole tensor, where it is a shard of one."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(
    model: nn.Module, loss_and_backward: Callable[[Tensor], Tensor], update: Callable[[], object]
) -> dict[str, Tensor]:
    """Takes a step per batch; returns the losses, and the last step's gradients by parameter."""
    found = {}
    for number, batch in enumerate(batches()):
        found[f"loss {number}"] = full(loss_and_backward(batch))
        gradients = {
            f"gradient of {name.replace('_orig_mod.', '')}": full(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        update()
    return found | gradients
