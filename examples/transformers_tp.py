"""transformers with its own tensor-parallel plan: torchrun --nproc-per-node 2 examples/transformers_tp.py

Training, generation with a static cache, and the Trainer.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from model import full
from torch import Tensor
from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

import tp_compile_pass.integrations.accelerate  # for the Trainer, which asks accelerate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def whole() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=4, eos_token_id=None))


def load() -> LlamaForCausalLM:
    """A small Llama, sharded while it is loaded, as `from_pretrained` does with any model that has a plan."""
    if not dist.is_initialized():
        dist.init_process_group("cuda:nccl,cpu:gloo" if DEVICE == "cuda" else "gloo")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        whole().save_pretrained(Path(folder[0]))
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(folder[0], distributed_config=DistributedConfig(tp_plan="auto"))


def tokens(seed: int) -> Tensor:
    return torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def train(backend: str) -> dict[str, Tensor]:
    model = load()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if backend != "no":
        model.compile(backend=backend)
    found, gradients = {}, {}
    for step in range(3):
        batch = tokens(step)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
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


def generate(backend: str) -> dict[str, Tensor]:
    model = load()
    options = {"disable_compile": True}
    if backend != "no":
        # `mode` is None because options, which it could have, and a mode exclude each other in torch.compile.
        compiled = CompileConfig(backend=backend, mode=None)
        compiled._compile_all_devices = True  # on CPU, transformers compiles only when told to
        options = {"compile_config": compiled}
    prompt = tokens(0)[:, :4]
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
        return_dict_in_generate=True,
        output_logits=True,
        **options,
    )
    return {"tokens": out.sequences, "logits": torch.stack(out.logits)}


def trainer(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """The Trainer, with a whole model on each rank: with GPUs it takes what `load` returns, on CPU it refuses that."""
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        torch_compile_backend=None if backend == "no" else backend,
        use_cpu=DEVICE == "cpu",
        per_device_train_batch_size=2,
        max_steps=3,
        learning_rate=0.1,
        optim="sgd",
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=0,
    )
    model = whole()
    data = [{"input_ids": row, "labels": row} for step in range(6) for row in tokens(step).cpu()]
    runner = Trainer(model=model, args=arguments, train_dataset=data)
    runner.train()
    losses = [torch.tensor(entry["loss"]) for entry in runner.state.log_history if "loss" in entry]
    return {f"loss {step}": loss for step, loss in enumerate(losses)} | {
        f"trained {name}": full(parameter) for name, parameter in model.named_parameters()
    }


def run(backend: str = "tp_inductor") -> dict[str, Tensor]:
    """Returns losses and gradients of training, tokens and logits of generation. `backend` may be "no"."""
    return train(backend) | generate(backend)


if __name__ == "__main__":
    print(run())
    print(tp_compile_pass.reports()[0])
    dist.destroy_process_group()
