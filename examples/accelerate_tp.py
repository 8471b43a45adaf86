"""accelerate with a tensor-parallel model: torchrun --nproc-per-node 2 examples/accelerate_tp.py"""

import torch
from accelerate import Accelerator
from model import Model, shard, train
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

import tp_compile_pass.integrations.accelerate


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Trains for some steps; returns losses and gradients. `backend` may be any that accelerate knows, or "no"."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), dynamo_backend=backend)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    model = shard(Model().to(accelerator.device), mesh)
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    # All ranks hold one model and get the same batches, so no DDP around it. (With GPUs and a model of transformers,
    # `ParallelismConfig(tp_size=2)` says as much; accelerate refuses that on CPU.)
    model = accelerator.prepare_model(model, evaluation_mode=True)

    def loss_and_backward(batch: Tensor) -> Tensor:
        loss = model(batch.to(accelerator.device)).square().mean()
        accelerator.backward(loss)
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return train(model, loss_and_backward, update)


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    torch.distributed.destroy_process_group()
