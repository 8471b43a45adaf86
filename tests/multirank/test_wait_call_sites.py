"""Wait call sites on real ranks: compiled with tp_inductor in one graph, every value and gradient equal to eager's."""

import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import tp_compile_pass
from tp_compile_pass import compat

pytestmark = pytest.mark.matrix
AOT = {"options": {"tp.inner": "aot_eager"}}
#: Only torch 2.5 leaves the call in the graph; later versions trace its body, and nothing is left to rewrite.
REWRITTEN_HERE = compat.TORCH == (2, 5)


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def gathered(x, mesh):
    """The form inference engines ship: an asynchronous redistribution, then a wait for what it returns."""
    sharded = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
    out = sharded.redistribute(mesh, [Replicate()], async_op=True).to_local()
    if isinstance(out, AsyncCollectiveTensor):
        return out.wait()
    return out


class RowParallel(nn.Module):
    """A row-parallel linear as written by hand: its all_reduce is waited for at the end of forward."""

    def __init__(self, group):
        super().__init__()
        self.weight, self.group = nn.Parameter(torch.randn(3, 3)), group

    def forward(self, x):
        outputs = all_reduce(x @ self.weight, "sum", self.group)
        if isinstance(outputs, AsyncCollectiveTensor):
            return outputs.wait()
        return outputs


def plain(mesh):
    return lambda x: gathered(x * 2, mesh).sin() + 1, []


def trained(mesh):
    layer = nn.Linear(3, 3)
    return lambda x: layer(gathered(x, mesh)).relu(), list(layer.parameters())


def row_parallel(mesh):
    model = nn.Sequential(RowParallel(mesh.get_group()), nn.ReLU(), nn.Linear(3, 3))
    return model, list(model[2].parameters())


def forward_hook(mesh):
    layer = nn.Linear(3, 3)
    layer.register_forward_hook(lambda module, args, out: gathered(out, mesh) * 2)
    return layer, []


def in_checkpoint(mesh):
    w = torch.randn(3, 3, requires_grad=True)

    def block(x, w):
        return (gathered(x, mesh) @ w).sin()

    return lambda x: checkpoint(block, x, w, use_reentrant=False) * 2, [w]


def in_selective_checkpoint(mesh):
    w = torch.randn(3, 3, requires_grad=True)

    def policy(ctx, op, *args, **kwargs):
        saved = op == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return create_selective_checkpoint_contexts(policy)

    def block(x, w):
        return (gathered(x, mesh) @ w).sin()

    return lambda x: checkpoint(block, x, w, use_reentrant=False, context_fn=contexts) * 2, [w]


def in_autograd_function(mesh):
    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            out = gathered(x, mesh)
            ctx.save_for_backward(out, w)
            return out @ w

        @staticmethod
        def backward(ctx, grad):
            out, _ = ctx.saved_tensors
            return None, gathered(out.t() @ grad, mesh)[:3]

    w = torch.randn(3, 3, requires_grad=True)
    return lambda x: Gathered.apply(x, w) * 2, [w]


def in_cond(mesh):
    group = mesh.get_group()

    def waited(x):
        out = all_reduce(x, "sum", group)
        return out.wait() if isinstance(out, AsyncCollectiveTensor) else out

    def positive(x):
        return waited(x).sin()

    def negative(x):
        return waited(x).cos()

    return lambda x: torch.cond(x.sum() > 0, positive, negative, (x,)), []


def in_cond_from_dtensor(mesh):
    def positive(x):
        return gathered(x, mesh).sin()

    def negative(x):
        return gathered(x, mesh).cos()

    return lambda x: torch.cond(x.sum() > 0, positive, negative, (x,)), []


def in_nested_region(mesh):
    @torch.compiler.nested_compile_region
    def region(x):
        return gathered(x, mesh).sin()

    return lambda x: region(x) + region(x + 1), []


def in_flex_attention(mesh):
    from torch.nn.attention.flex_attention import flex_attention

    def attention(x):
        q = gathered(x, mesh).reshape(1, 1, 3, 4).expand(1, 2, 3, 4).contiguous()
        bias = gathered(x + 1, mesh)
        # Three buffers: torch 2.9's CPU kernel refuses one for query, key and value.
        return flex_attention(q, q.sin(), q.cos(), score_mod=lambda score, b, h, i, j: score + bias[0, 0])

    return attention, []


def tp_mlp(mesh, plan, waiting=False):
    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return self.down(F.relu(self.up(self.norm(x))))

    model = parallelize_module(MLP(), mesh, plan)
    if waiting:
        model.down.register_forward_hook(wait_hook)
    return lambda x: model(x.flatten()[:1].expand(4, 8) * torch.arange(8.0)), list(model.parameters())


def wait_hook(module, args, out):
    return out.trigger_wait() if isinstance(out, AsyncCollectiveTensor) else out


def tp_colwise_rowwise(mesh):
    return tp_mlp(mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tp_waiting(mesh):
    """Without gradients only: in eager the result of `wait()` has no history, so nothing upstream gets a gradient."""
    return tp_mlp(mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}, waiting=True)


def tp_sequence(mesh):
    return tp_mlp(
        mesh,
        {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        },
    )


def tp_prepared(mesh):
    return tp_mlp(
        mesh,
        {
            "norm": PrepareModuleInput(
                input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),), use_local_output=True
            ),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
            "": PrepareModuleOutput(output_layouts=(Shard(0),), desired_output_layouts=(Replicate(),)),
        },
    )


#: Functional collectives are waited for while tracing already; only DTensor hands out async tensors in a graph.
WAITING_FOR_DTENSOR = [plain, trained, forward_hook, in_checkpoint, in_selective_checkpoint, in_autograd_function]
CASES = [*WAITING_FOR_DTENSOR, row_parallel, in_cond, tp_colwise_rowwise, tp_sequence, tp_prepared]
if hasattr(torch.compiler, "nested_compile_region"):
    CASES.append(in_nested_region)
if compat.TORCH >= (2, 6):  # on 2.5 flex attention has no CPU kernel
    CASES.append(in_flex_attention)
if compat.TORCH < (2, 10):  # from then on a DeviceMesh is a graph input, which torch.cond refuses with every backend
    CASES.append(in_cond_from_dtensor)
    WAITING_FOR_DTENSOR.append(in_cond_from_dtensor)


def values(fn, parameters, x):
    """The output and the parameters' gradients (of the output's sum) of one call."""
    for p in parameters:
        p.grad = None
    out = fn(x)
    if out.requires_grad:
        out.sum().backward()
    return [local(out).detach() * 1] + [local(p.grad) for p in parameters]


def local(t):
    return t.to_local() * 1 if isinstance(t, DTensor) else t


def compare(case, backend="tp_inductor", **compile_kwargs):
    """Runs on every rank: `case` compiled in one graph against eager, on two inputs; returns the report's rewrites."""
    torch.manual_seed(0)
    fn, parameters = case(mesh())
    inputs = [torch.arange(6.0).reshape(2, 3) * (dist.get_rank() + 1) + k for k in range(2)]
    if compile_kwargs.get("dynamic"):
        inputs.append(torch.arange(12.0).reshape(4, 3) - dist.get_rank())
    want = [values(fn, parameters, x) for x in inputs]
    tp_compile_pass.report.record.clear_reports()
    compiled = torch.compile(fn, backend=backend, fullgraph=True, **compile_kwargs)
    for x, expected in zip(inputs, want, strict=True):
        torch.testing.assert_close(values(compiled, parameters, x), expected)
    return [place for r in tp_compile_pass.reports() for place in r.graphs[0].rewrites]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_equals_eager(ranks2, case):
    for rewrites in ranks2.run(compare, case):
        assert bool(rewrites) == (REWRITTEN_HERE and case in WAITING_FOR_DTENSOR)
        assert {place.line.file for place in rewrites} <= {__file__}


def without_grad(case, guard):
    with guard():
        return compare(case, **AOT)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("case", [row_parallel, tp_colwise_rowwise, tp_waiting], ids=lambda case: case.__name__)
def test_without_grad(ranks2, case, guard):
    if compat.TORCH == (2, 5) and guard is torch.inference_mode and case is not row_parallel:
        pytest.skip("torch 2.5 cannot compile a DTensor parameter in inference_mode, with any backend")
    ranks2.run(without_grad, case, guard)


def compare_dynamic(case):
    return compare(case, dynamic=True)


@pytest.mark.parametrize("case", [plain, row_parallel], ids=lambda case: case.__name__)
def test_dynamic_shapes(ranks2, case):
    if case is plain and compat.TORCH < (2, 9):
        pytest.skip("DTensor has no dynamic shapes before torch 2.9")
    ranks2.run(compare_dynamic, case)


def two_mesh_dimensions():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    fn, parameters = tp_colwise_rowwise(mesh["tp"])
    x = torch.arange(6.0).reshape(2, 3) + dist.get_rank()
    want = values(fn, parameters, x)
    compiled = torch.compile(fn, backend="tp_inductor", fullgraph=True, **AOT)
    torch.testing.assert_close(values(compiled, parameters, x), want)
    group_2d = DTensor.from_local(torch.ones(2, 2) * dist.get_rank(), mesh, [Shard(0), Shard(1)], run_check=False)

    def both(x):
        out = x.redistribute(mesh, [Replicate(), Replicate()], async_op=True).to_local()
        return out.wait() + 1 if isinstance(out, AsyncCollectiveTensor) else out + 1

    torch.testing.assert_close(
        torch.compile(both, backend="tp_inductor", fullgraph=True, **AOT)(group_2d), both(group_2d)
    )


def test_two_mesh_dimensions(ranks4):
    ranks4.run(two_mesh_dimensions)


def crash_of_plain_inductor():
    try:
        torch.compile(plain(mesh())[0], backend="inductor", fullgraph=True)(torch.ones(2, 3))
    except Exception as error:
        return str(error)
    return ""


def test_plain_inductor_crashes_on_2_5_only(ranks2):
    for message in ranks2.run(crash_of_plain_inductor):
        if REWRITTEN_HERE:
            assert "'FunctionalTensor' object has no attribute 'wait'" in message
        else:
            assert message == ""


def lines_of_waits():
    """Where the wait nodes of the graph that Inductor generates code for say they come from."""
    lines = []

    def keep(graph):
        lines.extend(n.meta.get("stack_trace", "") for n in graph.nodes if "wait_tensor" in str(n.target))

    with torch._inductor.config.patch(post_grad_custom_post_pass=keep), compat.without_caches():
        torch.compile(plain(mesh())[0], backend="tp_inductor", fullgraph=True)(torch.ones(2, 3))
    return lines


def test_the_wait_keeps_the_users_line_down_to_inductor(ranks2):
    for lines in ranks2.run(lines_of_waits):
        assert lines
        assert all(__file__ in line and "gathered" in line for line in lines)
