"""transformers' Llama (5.24 tried) under torchtitan's tensor-parallel plan trains compiled as it trains in eager.

Between its modules the hidden states travel in sequence shards, as plain tensors, which its code expects. It would take
the sequence's length from such a shard, so positions and the causal mask are handed to it.
"""

import pytest
import torch
from llama_training import SEQUENCE, VOCABULARY, assert_same, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tp_compile_pass.report.record import clear_reports, reports

pytest.importorskip("transformers")


def whole_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def parallelize(model, mesh):
    whole = Replicate()
    plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=Shard(1)),
        "model.norm": SequenceParallel(use_local_output=True),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=whole),
    }
    for i in range(len(model.model.layers)):
        layer = f"model.layers.{i}"
        plan |= {f"{layer}.{name}_layernorm": SequenceParallel() for name in ("input", "post_attention")}
        plan[f"{layer}.self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": whole}
        )
        plan[f"{layer}.mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(whole,))
        plan |= {f"{layer}.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
        plan |= {f"{layer}.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
        plan |= {
            f"{layer}.{name}": RowwiseParallel(output_layouts=Shard(1))
            for name in ("self_attn.o_proj", "mlp.down_proj")
        }
    parallelize_module(model, mesh, plan)


def hugging_face_llama(how, inner, parallel=True):
    model = whole_model()
    if parallel:
        parallelize(model, init_device_mesh("cpu", (torch.distributed.get_world_size(),)))
    positions = torch.arange(SEQUENCE)[None]
    mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril()[None, None]

    def logits(tokens):
        return model(input_ids=tokens, position_ids=positions, attention_mask=mask).logits

    return train(model, model.model.layers, logits, how, inner)


def on_one_rank():
    return hugging_face_llama("eager", "", parallel=False)


@pytest.mark.parametrize("how", ["layers", "model"])
@pytest.mark.parametrize("count", [2, 4])
def test_trains_as_in_eager(request, count, how):
    assert_same(request.getfixturevalue(f"ranks{count}"), hugging_face_llama, how)


@pytest.mark.parametrize("how", ["layers", "model"])
def test_trains_as_in_eager_through_inductor(ranks2, how):
    assert_same(ranks2, hugging_face_llama, how, "inductor")


def test_the_plan_is_right(ranks2):
    """In eager it trains as the same model does on one rank."""
    for parallel, single in zip(ranks2.run(hugging_face_llama, "eager", ""), ranks2.run(on_one_rank), strict=True):
        assert parallel == pytest.approx(single, rel=1e-3)


def entered():
    clear_reports()
    hugging_face_llama("layers", "aot_eager")
    return [(b.handling, b.reason) for report in reports() for graph in report.graphs for b in graph.boundary]


def test_each_layer_is_handed_an_async_tensor(ranks2):
    for found in ranks2.run(entered):
        assert found == [("waited for at the door", "a gradient has to pass the wait")] * len(found) and found
