"""torchtune's Llama 3 with its tensor-parallel plan: torchrun --nproc-per-node 2 examples/torchtune_tp.py

Its recipes ask the environment: TORCH_COMPILE_BACKEND=tp_inductor tune run …
"""

import os

import torch
import torch.distributed as dist
from model import full
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torchtune.models.llama3 import base_llama_tp_plan, llama3
from torchtune.training import compile_model, prepare_mha_for_tp

import tp_compile_pass

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Three steps; returns losses and gradients. `backend` may be any that torch knows, or "no"."""
    if not dist.is_initialized():
        dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = llama3(vocab_size=64, num_layers=2, num_heads=4, num_kv_heads=4, embed_dim=32, max_seq_len=32).to(DEVICE)
    parallelize_module(prepare_mha_for_tp(model, mesh), mesh, base_llama_tp_plan())
    if backend != "no":
        os.environ["TORCH_COMPILE_BACKEND"] = backend
        compile_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found, gradients = {}, {}
    for step in range(3):
        tokens = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(step)).to(DEVICE)
        loss = model(tokens).float().square().mean()
        loss.backward()
        found[f"loss {step}"] = full(loss)
        gradients = {
            f"gradient of {name}": full(parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        optimizer.step()
        optimizer.zero_grad()
    return found | gradients


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    dist.destroy_process_group()
