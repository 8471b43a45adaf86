"""DeepSpeed's AutoTP with engine.compile: torchrun --nproc-per-node 2 examples/deepspeed_tp.py"""

import deepspeed
import torch
from model import Model, batches, train
from torch import Tensor

import tp_compile_pass

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 0},
    "tensor_parallel": {
        "autotp_size": 2,
        "partition_config": {
            "use_default_specs": False,
            "layer_specs": [
                {"patterns": [r".*\.up\.weight$"], "partition_type": "column"},
                {"patterns": [r".*\.down\.weight$"], "partition_type": "row"},
            ],
        },
    },
}


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Trains for some steps; returns losses and gradients. `backend` may be any that torch knows, or "no"."""
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    engine, *_ = deepspeed.initialize(model=Model(), config=CONFIG)
    with torch.no_grad():  # the first forward compares the ranks' batches, which is better not compiled
        engine(batches()[0].to(engine.device))
    if backend != "no":
        engine.compile(backend=backend)

    def loss_and_backward(batch: Tensor) -> Tensor:
        loss = engine(batch.to(engine.device)).square().mean()
        engine.backward(loss)
        return loss

    return train(engine.module, loss_and_backward, engine.step)


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    torch.distributed.destroy_process_group()
