"""LitGPT's tensor-parallel generation: torchrun --nproc-per-node 2 examples/litgpt_tp.py

`litgpt generate_tp --compile` calls torch.compile and names no backend, so `set_default` selects it (torch 2.13 or
later; `patch_inductor` on an older torch).
"""

import lightning_fabric as fabric
import torch
import torch.distributed as dist
from litgpt import GPT, Config
from litgpt.generate.base import next_token
from litgpt.generate.tp import tensor_parallel
from torch import Tensor

import tp_compile_pass


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Generates some tokens. `backend` may be "no"."""
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    lightning = fabric.Fabric(accelerator=accelerator, devices=2, strategy="ddp")
    lightning.launch()
    torch.manual_seed(0)
    config = Config(block_size=64, n_layer=2, n_head=4, n_embd=32, padded_vocab_size=64, intermediate_size=64)
    model = tensor_parallel(lightning, GPT(config).to(lightning.device)).eval()
    model.set_kv_cache(batch_size=1, device=lightning.device)
    choose = next_token
    if backend != "no":
        tp_compile_pass.set_default()
        choose = torch.compile(next_token, mode="reduce-overhead")  # as LitGPT does
    tokens = [torch.tensor([1], device=lightning.device)]
    with torch.no_grad():
        for position in range(8):
            at = torch.tensor([position], device=lightning.device)
            tokens.append(choose(model, at, tokens[-1].view(1, 1), temperature=0.0, top_k=None, top_p=0.0).view(1))
    return {"tokens": torch.cat(tokens)}


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    dist.destroy_process_group()
