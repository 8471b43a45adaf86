"""torchtitan's Llama 3 and its parallelize function: torchrun --nproc-per-node 2 examples/torchtitan_tp.py

What torchtitan's trainer does with `--compile.enable --compile.backend tp_inductor`, without the trainer, which needs a
GPU. `--compile.backend` is what has to be said, `--override.imports` for a model with FlexAttention.
"""

import torch
import torch.distributed as dist
import torchtitan.tools.utils
from model import full
from torch import Tensor

if not torch.cuda.is_available():
    torchtitan.tools.utils.device_type = "cpu"  # torchtitan takes a machine without an accelerator for one with CUDA

from torchtitan.config import CompileConfig, OverrideConfig, ParallelismConfig, TrainingConfig
from torchtitan.config.override import apply_overrides
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import get_spmd_context, set_spmd_backend
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.rope import CosSinRoPE
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_debugmodel

import tp_compile_pass

DEVICE, LAYERS, SEQUENCE = torchtitan.tools.utils.device_type, 2, 32


class Run:
    """A model as torchtitan's trainer builds it, sharded over all ranks."""

    def __init__(self, backend: str, spmd: str, flex: bool) -> None:
        if not dist.is_initialized():
            torch.autograd.set_multithreading_enabled(False)  # as torchtitan's init_distributed does
            dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
        config = llama3_debugmodel()
        spec = model_registry("debugmodel")
        del spec.model.layers[LAYERS:]
        for layer in spec.model.layers:
            if not flex:  # which trains on GPUs only
                layer.attention.inner_attention = ScaledDotProductAttention.Config()
            elif DEVICE == "cpu":  # Inductor's FlexAttention for CPU fails on complex numbers before it
                rope = layer.attention.rope
                layer.attention.rope = CosSinRoPE.Config(dim=rope.dim, max_seq_len=rope.max_seq_len, theta=rope.theta)
        config.model_spec = spec
        config.parallelism = ParallelismConfig(tensor_parallel_degree=dist.get_world_size(), spmd_backend=spmd)
        config.training = TrainingConfig(seq_len=SEQUENCE, mixed_precision_param="float32")
        config.compile = CompileConfig(enable=backend != "no", backend=backend)
        if flex and backend == "tp_inductor":
            config.override = OverrideConfig(imports=["tp_compile_pass.integrations.torchtitan.tp_inductor"])
        set_spmd_backend(spmd)
        spec.model.update_from_config(config=config)
        if config.override.imports:
            apply_overrides(config.override, config)
        self.dims = ParallelDims.from_config(config.parallelism, dist.get_world_size())
        self.dims.build_mesh()
        with torch.device("meta"):
            model = spec.model.build()
        model = spec.parallelize_fn(
            model,
            parallel_dims=self.dims,
            training=config.training,
            parallelism=config.parallelism,
            compile_config=config.compile,
            ac_config=None,
            dump_folder="",
        )
        model.to_empty(device=DEVICE)
        torch.manual_seed(0)
        with torch.no_grad():
            model.init_weights(buffer_device=None)
        self.model = model
        self.context = get_spmd_context(parallel_dims=self.dims)

    def logits(self, seed: int, **extra: object) -> Tensor:
        tokens = torch.randint(2048, (2, SEQUENCE), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        positions = torch.arange(SEQUENCE, device=DEVICE).expand(2, -1)
        return self.model(tokens, positions=positions, **extra)


def train(backend: str, spmd: str) -> dict[str, Tensor]:
    """Three steps; returns losses and gradients."""
    run = Run(backend, spmd, flex=False)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    found, gradients = {}, {}
    for step in range(3):
        with run.context():
            loss = run.logits(step).float().square().mean()
            loss.backward()
        found[f"loss {step}"] = full(loss)
        gradients = {
            f"gradient of {name}": full(parameter.grad)
            for name, parameter in run.model.named_parameters()
            if parameter.grad is not None
        }
        optimizer.step()
        optimizer.zero_grad()
    return found | gradients


def train_dtensor(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """With DTensors between the modules; `backend` may be any that torch knows, or "no"."""
    return train(backend, "partial_dtensor")


def train_spmd_types(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """With torchtitan's own types of sharding, its default: collectives sit in autograd functions."""
    return train(backend, "spmd_types")


def infer_flex(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """FlexAttention, which on CPU has no backward."""
    run = Run(backend, "partial_dtensor", flex=True)
    positions = torch.arange(SEQUENCE, device=DEVICE).expand(2, -1)
    with torch.no_grad(), run.context():
        return {"logits": full(run.logits(0, attention_masks=run.model.get_attention_masks(positions)))}


if __name__ == "__main__":
    print(train_spmd_types())
    print(tp_compile_pass.reports()[0])
    dist.destroy_process_group()
