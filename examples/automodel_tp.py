"""NeMo Automodel's way of compiling a model: torchrun --nproc-per-node 2 examples/automodel_tp.py

The same as in a recipe's YAML: `compile: {enabled: true, backend: tp_inductor}`.
"""

import torch
import torch.distributed as dist
from model import Model, shard, train
from nemo_automodel.components.utils.compile_utils import build_compile_config, compile_model
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import tp_compile_pass

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Trains for some steps; returns losses and gradients. `backend` may be "no"."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    model = shard(Model().to(DEVICE), init_device_mesh(DEVICE, (dist.get_world_size(),)))
    model = compile_model(model, build_compile_config({"enabled": backend != "no", "backend": backend}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_and_backward(batch: Tensor) -> Tensor:
        loss = model(batch.to(DEVICE)).square().mean()
        loss.backward()
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return train(model, loss_and_backward, update)


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    dist.destroy_process_group()
