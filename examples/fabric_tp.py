"""Lightning Fabric's ModelParallelStrategy: python examples/fabric_tp.py (it starts its two ranks itself)"""

import lightning_fabric as fabric
import torch
from lightning_fabric.strategies import ModelParallelStrategy
from model import Model, shard, train
from torch import Tensor

import tp_compile_pass


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Trains for some steps; returns losses and gradients. `backend` may be any that torch knows, or "no"."""
    strategy = ModelParallelStrategy(
        parallelize_fn=lambda model, mesh: shard(model, mesh["tensor_parallel"]),
        data_parallel_size=1,
        tensor_parallel_size=2,
    )
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    lightning = fabric.Fabric(accelerator=accelerator, devices=2, strategy=strategy)
    lightning.launch()
    with lightning.init_module():
        model = Model()
    # Compiled before the set-up, which shards the model and compiles what it has sharded in the same way.
    model = lightning.setup(model if backend == "no" else torch.compile(model, backend=backend))
    optimizer = lightning.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))

    def loss_and_backward(batch: Tensor) -> Tensor:
        loss = model(lightning.to_device(batch)).square().mean()
        lightning.backward(loss)
        return loss

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return train(model, loss_and_backward, update)


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    torch.distributed.destroy_process_group()
