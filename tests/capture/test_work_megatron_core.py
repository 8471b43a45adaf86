"""megatron-core's own column- and row-parallel layers (0.16.1 tried), compiled whole and trained as in eager.

megatron-core has no CPU path for its buffers: they are made on `torch.cuda.current_device()`, which is replaced here.
Its layers warn on rank 0 alone, which Dynamo has to ignore, or rank 0 breaks its graph where the others do not.
"""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tp_compile_pass.report.record import clear_reports, reports
from training import losses_of

pytest.importorskip("megatron.core")


class Block(nn.Module):
    def __init__(self, sequence_parallel):
        from megatron.core import ModelParallelConfig, tensor_parallel

        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=dist.get_world_size(),
            sequence_parallel=sequence_parallel,
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
        )
        torch.manual_seed(3)
        same = {"config": config, "init_method": nn.init.xavier_normal_, "bias": True}
        self.up = tensor_parallel.ColumnParallelLinear(8, 16, gather_output=False, **same)
        self.down = tensor_parallel.RowParallelLinear(16, 8, input_is_parallel=True, skip_bias_add=False, **same)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)[0]))[0]


def prepare():
    from megatron.core import parallel_state

    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # else the layers warn
    torch._dynamo.config.ignore_logging_functions.add(warnings.warn)
    torch._dynamo.trace_rules.get_torch_obj_rule_map()  # Dynamo's list of torch's functions, before one is replaced
    torch.cuda.current_device = lambda: "cpu"
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(dist.get_world_size())


def train(sequence_parallel, compiled, steps=5):
    torch._dynamo.reset()
    model = Block(sequence_parallel)
    run = model
    if compiled:
        run = torch.compile(model, backend="tp_inductor", fullgraph=True, options={"tp.inner": "aot_eager"})
    torch.manual_seed(7)
    x, y = torch.randn(4, 2, 8), torch.randn(4, 2, 8)
    if sequence_parallel:
        x, y = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (x, y))
    x = x.clone().requires_grad_()
    losses = losses_of(model.parameters(), lambda: (run(x) - y).square().sum(), steps, lr=0.01)
    return losses, [p.detach().clone() for p in model.parameters()], x.grad


def trained_alike(sequence_parallel):
    prepare()
    expected = train(sequence_parallel, False)
    clear_reports()
    torch.testing.assert_close(train(sequence_parallel, True), expected)
    results = [result for report in reports() for graph in report.graphs for result in graph.passes]
    return sorted(place.what for result in results if result.name == "work_call_sites" for place in result.applied)


@pytest.mark.parametrize(
    ("sequence_parallel", "captured"),
    [(False, ["dist.all_reduce"]), (True, ["dist.all_gather_into_tensor", "dist.reduce_scatter_tensor"])],
)
def test_trained_as_in_eager(ranks2, sequence_parallel, captured):
    for found in ranks2.run(trained_alike, sequence_parallel):
        assert found == captured
