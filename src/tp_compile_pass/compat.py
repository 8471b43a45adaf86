"""Every private torch API that this package touches, and nothing else imports torch privates.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0 (`make matrix`); where a version lacks something, the function
here says so in words instead of failing with an AttributeError somewhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch

OLDEST = (2, 5)
CHECKED = ("2.5.1", "2.6.0", "2.9.1", "2.13.0", "2.15.0")
#: torch's release as numbers, for the few places where behaviour is a property of the version alone.
TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])

#: What FX nodes call. torch documents the classes and exports them nowhere else.
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
HigherOrderOperator = torch._ops.HigherOrderOperator

CompiledFn = Callable[..., Any]
InnerCompile = Callable[..., Any]


def require_supported_torch() -> None:
    """Raises ImportError on a torch older than any that tp_inductor was checked on."""
    if TORCH < OLDEST:
        raise ImportError(
            f"tp_compile_pass needs torch >= {OLDEST[0]}.{OLDEST[1]} and found {torch.__version__} "
            f"(checked on {', '.join(CHECKED)})"
        )


class UnsupportedTorch(RuntimeError):
    """The installed torch lacks a private API that a step of ours needs. The message names both."""

    def __init__(self, api: str) -> None:
        super().__init__(f"torch {torch.__version__} has no {api} (checked on {', '.join(CHECKED)})")


# ---------------------------------------------------------------------------------------------------------- Inductor
_wrappers: list[Any] = []


def inductor_class() -> Any:
    """The class of Inductor's own backend object, also while `patch_inductor` has put another in its place; None where
    torch has none."""
    found = getattr(torch, "_TorchCompileInductorWrapper", None)
    return getattr(found, "tp_compile_pass_original", found)


def inductor_wrapper(mode: str | None, options: dict[str, Any], name: str | None) -> Any:
    """Inductor's own backend object for these settings, one per distinct setting.

    It validates and expands mode and options exactly as `backend="inductor"` does, with the same errors, and folds in
    torch's compiler bisector. Wrappers are kept, so that `reset_inductor` reaches CUDA graph trees.
    """
    make: Any = inductor_class()
    if make is None:
        raise UnsupportedTorch("torch._TorchCompileInductorWrapper")
    takes_name = "name" in inspect.signature(make.__init__).parameters
    wrapper = make(mode, options, None, name) if takes_name else make(mode, options, None)
    for known in _wrappers:
        if known == wrapper:
            return known
    _wrappers.append(wrapper)
    return wrapper


def reset_inductor() -> None:
    """What `torch._dynamo.reset()` does to Inductor's own wrapper, for each of ours."""
    for wrapper in _wrappers:
        wrapper.reset()


def copies_inputs(mode: str | None, options: dict[str, Any], patches: dict[str, Any] | None) -> str:
    """Why Inductor's code may read an input before the graph itself does; "" where it does not."""
    from torch._inductor import config

    settings = {**inductor_wrapper(mode, options, None).config, **(patches or {})}
    return "CUDA graphs copy their inputs first" if settings.get("triton.cudagraphs", config.triton.cudagraphs) else ""


# ---------------------------------------------------------------------------------------------------- distributed
@functools.cache
def async_collective_tensor() -> type | None:
    """`AsyncCollectiveTensor`, or None where this torch was built without torch.distributed."""
    if not torch.distributed.is_available():
        return None
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor  # type: ignore[no-any-return]


def is_async_collective(value: object) -> bool:
    """Whether `value` is an AsyncCollectiveTensor (a real one, or a fake one from a graph's metadata)."""
    cls = async_collective_tensor()
    return cls is not None and isinstance(value, cls)


def holds_async(value: object) -> bool:
    """Whether `value` is an AsyncCollectiveTensor or a wrapper subclass (a DTensor, say) with one inside."""
    if type(value) is torch.Tensor or type(value) is torch.nn.Parameter or not isinstance(value, torch.Tensor):
        return False
    return is_async_collective(value) or any(map(holds_async, _inner_tensors(value).values()))


def torch_waits_for(value: object) -> bool:
    """Whether torch itself waits rightly for what is async in `value`, a graph's input: a DTensor's local tensor from
    torch 2.15 on. Checked: 2.13.0 is wrong where the graph writes to it or returns it; 2.15.0 still is with two tensors
    inside a wrapper that have history."""
    return TORCH >= (2, 15) and is_dtensor(value) and is_async_collective(value._local_tensor)  # type: ignore[attr-defined]


def resolve_async(tensor: Any, wait: bool) -> torch.Tensor:
    """`tensor` with each AsyncCollectiveTensor in it replaced by the tensor it wraps, which is waited for if `wait`."""
    if is_async_collective(tensor):
        return tensor.trigger_wait() if wait else tensor.elem  # type: ignore[no-any-return]
    if not holds_async(tensor):
        return tensor  # type: ignore[no-any-return]
    inner = {name: resolve_async(value, wait) for name, value in _inner_tensors(tensor).items()}
    names, context = tensor.__tensor_flatten__()
    inner = {name: inner.get(name, getattr(tensor, name)) for name in names}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[no-any-return]


def plain_like(fake: Any) -> Any:
    """What `resolve_async` makes of a tensor, for the fake one in a graph's metadata."""
    return resolve_async(fake, wait=False)


def _inner_tensors(tensor: Any) -> dict[str, torch.Tensor]:
    """The tensors that a traceable wrapper subclass consists of, by attribute; none for any other tensor."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if not is_traceable_wrapper_subclass(tensor):
        return {}
    values = {name: getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def is_wait_function(target: object) -> bool:
    """Whether `target` is the Python function that torch 2.13 and later leave in Dynamo's graph for `x.wait()`."""
    if async_collective_tensor() is None:
        return False
    from torch.distributed import _functional_collectives

    return target is _functional_collectives.wait_tensor


def waits_have_gradients() -> bool:
    """Whether `wait_tensor` passes gradients on (torch 2.13 and later; checked: 2.9.1 does not, 2.13.0 does)."""
    return TORCH >= (2, 13)


def tree_leaves(value: Any) -> list[Any]:
    """What nested lists, tuples and dicts hold, in order."""
    from torch.utils._pytree import tree_leaves as leaves

    return leaves(value)  # type: ignore[no-any-return]


def storages(value: Any) -> set[int]:
    """The identities of the storages behind all tensors of a nested value, those inside wrapper subclasses included."""
    from torch.multiprocessing.reductions import StorageWeakRef

    found: set[int] = set()
    for leaf in tree_leaves(value):
        if not isinstance(leaf, torch.Tensor):
            continue
        inner = _inner_tensors(leaf)
        if inner:
            found |= storages(list(inner.values()))
        elif leaf.layout is torch.strided:
            found.add(StorageWeakRef(leaf.untyped_storage()).cdata)
    return found


def wait_tensor_op() -> torch._ops.OpOverload:
    """The op that waits for a functional collective; differentiable and cacheable, unlike a Python function."""
    async_collective_tensor()  # defines the op's Python registrations
    return torch.ops._c10d_functional.wait_tensor.default


def functional_op(name: str) -> torch._ops.OpOverload | None:
    """The op `_c10d_functional::name`; None on a torch without it."""
    packet = getattr(torch.ops._c10d_functional, name, None) if name else None
    return packet.default if packet is not None else None


def reduce_op_name(op: object) -> str | None:
    """How functional collectives spell a `dist.ReduceOp`; None where they have none."""
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    return REDUCE_OP_TO_STR.get(op)  # type: ignore[call-overload,no-any-return]


def has_p2p_ops() -> bool:
    """Whether functional send and receive exist (torch 2.13 and later)."""
    async_collective_tensor()
    return hasattr(torch.ops._c10d_functional, "batch_p2p_ops")


def group_device(group: Any) -> str:
    """A device type on which the process group communicates."""
    types = [device.type for device in group._device_types]
    return "cpu" if "cpu" in types else str(types[0])


def let_dynamo_trace_process_group(cls: type) -> None:
    """Makes Dynamo treat instances of `cls`, a Python subclass of ProcessGroup, as process groups.

    From torch 2.13 on it does so by itself; before, it knows torch's own classes only, by exact type.
    """
    from torch._dynamo.variables import distributed

    variable = getattr(distributed, "ProcessGroupVariable", None)
    if variable is None:
        return
    known = variable.is_process_group
    variable.is_process_group = staticmethod(lambda value: type(value) is cls or known(value))


#: Inductor lowers an all_reduce of a non-contiguous tensor to one of a contiguous copy, and then waits on another
#: buffer than the one that was sent (a silent race). Checked: 2.9.1 does; 2.5.1, 2.6.0, 2.13.0 and 2.15.0 do not. The
#: releases between are taken to do so: what we do about it is harmless.
WAITS_ON_A_COPY = (2, 6) < TORCH < (2, 13)
#: Whether torch traces the synchronous all_gather into a list; before, an assertion of its own breaks the graph
#: (seen on 2.5.1 and 2.9.1).
TRACES_ALL_GATHER_LISTS = TORCH >= (2, 13)


def is_contiguous(value: object) -> bool:
    """Whether a (fake) tensor is known to be contiguous; true for what is no tensor. Guards on no symbolic size."""
    if not isinstance(value, torch.Tensor):
        return True
    expected: Any = 1
    for size, step in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        size, step = _expression(size), _expression(step)
        if size != 1 and step != expected:
            return False
        expected = expected * size
    return True


def memory_range(value: object) -> tuple[int, int, int] | None:
    """The memory that a (fake) tensor covers: its storage, and the bytes at which it begins and ends there. None for
    what is no plain tensor, or whose sizes are not known; guards on no symbolic size."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not all(isinstance(number, int) for number in numbers):
        return None
    try:
        storage = value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a subclass without memory of its own
        return None
    last = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
    begin = int(value.storage_offset())
    end = begin if value.numel() == 0 else begin + int(last) + 1
    return storage, begin * value.element_size(), end * value.element_size()


def memory_order(value: torch.Tensor) -> list[int] | None:
    """The dimensions of a (fake) tensor, outermost in memory first; None where a stride has no known size."""
    steps = [step.node.hint if isinstance(step, torch.SymInt) else step for step in value.stride()]
    if any(step is None for step in steps):
        return None
    return sorted(range(value.dim()), key=lambda dim: (-int(steps[dim]), dim))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def disjoint(a: object, b: object) -> bool:
    """Whether two (fake) tensors certainly lie in different parts of one storage."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    try:
        if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
            return False
        (low, high), (other_low, other_high) = _span(a), _span(b)
    except (RuntimeError, NotImplementedError):  # a wrapper subclass has no storage
        return False
    if not all(type(end) is int for end in (low, high, other_low, other_high)):
        return False
    return bool(high < other_low or other_high < low)


def _span(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The first and the last element of its storage that `tensor` covers."""
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.storage_offset(), tensor.storage_offset() + reach


def is_dtensor(value: object) -> bool:
    """Whether `value` is a DTensor (a real one, or a fake one from a graph's metadata). Imports nothing: a process that
    has not loaded DTensor has none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def process_group(name: str) -> Any:
    """The process group of this process that is called `name`; None where there is none."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    from torch.distributed.distributed_c10d import _resolve_process_group

    try:
        return _resolve_process_group(name)  # type: ignore[arg-type]
    except (RuntimeError, ValueError, LookupError):
        return None


def group_ranks(name: str) -> tuple[int, ...] | None:
    """The global ranks of the process group called `name`, in its order; None where this process has no such group."""
    group = process_group(name)
    return None if group is None else tuple(torch.distributed.get_process_group_ranks(group))


def rank_in_group(name: str) -> int | None:
    """This process's rank in the process group called `name`; None where it has none."""
    ranks = group_ranks(name)
    rank = torch.distributed.get_rank() if ranks is not None else None
    return ranks.index(rank) if ranks is not None and rank in ranks else None


def group_backend(name: str, device: str) -> str:
    """The backend ("gloo", "nccl", …) by which the process group called `name` communicates from `device`, a device
    type; "" where this process has no such group."""
    group = process_group(name)
    if group is None:
        return ""
    backends = dict(part.split(":") for part in torch.distributed.get_backend_config(group).split(",") if ":" in part)
    return backends.get(device) or str(torch.distributed.get_backend(group))


def group_name(group: Any) -> str:
    """The name of a process group."""
    return str(group.group_name)


def world_group() -> Any:
    """The default process group; None where there is none."""
    distributed = torch.distributed
    return distributed.group.WORLD if distributed.is_available() and distributed.is_initialized() else None


def default_store(prefix: str) -> Any:
    """The default process group's store, its keys under `prefix`; None where there are no other ranks in it."""
    if world_group() is None or torch.distributed.get_world_size() == 1 or torch.distributed.get_backend() == "fake":
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    return torch.distributed.PrefixStore(prefix, _get_default_store())


def mesh_groups(dtensor: Any) -> list[str]:
    """The names of the process groups of a DTensor's mesh that this rank is in."""
    mesh = dtensor.device_mesh
    return [mesh.get_group(dim).group_name for dim in range(mesh.ndim)]


def group_name_of_ranks(ranks: Sequence[int], tag: str) -> str:
    """The name of the group that a legacy functional collective means; the ranks as text where it does not exist."""
    from torch.distributed import distributed_c10d as c10d

    resolve = getattr(c10d, "_resolve_group_name_by_ranks_and_tag", None)
    try:
        return str(resolve(list(ranks), tag)) if resolve is not None else f"ranks {list(ranks)} {tag}".strip()
    except (RuntimeError, ValueError, LookupError, AssertionError):
        return f"ranks {list(ranks)} {tag}".strip()


# -------------------------------------------------------------------------------------------------- Dynamo, tracing
def compile_id() -> str:
    """Dynamo's id of the compilation in progress ("0/1": frame 0, recompilation 1), or "" outside of one."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id() or "")


def with_context_of(wrapper: Any, inner: torch.Tensor) -> torch.Tensor:
    """Returns `inner`, known to Dynamo's symbolic shapes as `wrapper`, the async tensor it stands for, was.

    Without that AOTAutograd gives its sizes new symbols, which no guard knows (2.15: a guard fails on the same frame).
    """
    from torch._guards import TracingContext

    context = TracingContext.try_get()
    known = context.tensor_to_context.get(wrapper) if context is not None else None
    if context is not None and known is not None:
        context.tensor_to_context[inner] = _plain_context(known, wrapper)
    return inner


def _plain_context(context: Any, value: Any) -> Any:
    """A symbolic context without the layers that stand for AsyncCollectiveTensors."""
    if is_async_collective(value):
        return context.inner_contexts["elem"]
    inner = {name: _plain_context(context.inner_contexts[name], part) for name, part in _inner_tensors(value).items()}
    return dataclasses.replace(context, inner_contexts={**context.inner_contexts, **inner}) if inner else context


def compiling_function() -> str:
    """The function that Dynamo is compiling, as "file.py:name:line"; "" outside of a compilation."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        code = InstructionTranslator.current_tx().f_code
    except AttributeError:
        return ""
    return f"{os.path.basename(code.co_filename)}:{code.co_name}:{code.co_firstlineno}"


def ends_in_graph_break(gm: torch.fx.GraphModule) -> bool:
    """Whether Dynamo ended this graph before the end of the function that it captures."""
    return bool(getattr(getattr(gm, "compile_subgraph_reason", None), "graph_break", False))


def aot_autograd(gm: torch.fx.GraphModule, inputs: Sequence[Any], **compilers: Any) -> CompiledFn:
    """`functorch.compile.aot_module_simplified` as torch's own backends call it: it also takes the graphs of compiled
    autograd (with lists among their inputs) and of DDP's buckets."""
    from torch._dynamo.backends.common import aot_autograd as make

    return make(**compilers)(gm, inputs)


def without_caches() -> Any:
    """A context manager under which AOTAutograd builds its graphs and Inductor its schedules anew, for us to see them,
    instead of loading compiled code. Kernels that were compiled before are still found."""
    from torch._functorch import config
    from torch._inductor import config as inductor_config

    stack = ExitStack()
    stack.enter_context(config.patch(enable_autograd_cache=False))
    stack.enter_context(inductor_config.patch(fx_graph_cache=False))
    return stack


def compile_backward_at_once() -> Any:
    """A context manager under which AOTAutograd compiles the backward graph together with the forward.

    Where the version has no such switch (before torch 2.8) it changes nothing: the backward is compiled when
    `.backward()` runs.
    """
    from torch._functorch import config

    if not hasattr(config, "force_non_lazy_backward_lowering"):
        return config.patch({})
    return config.patch(force_non_lazy_backward_lowering=True)


def with_cache_key_tag(tag: str) -> Any:
    """A context manager under which compiled code is filed in torch's caches apart from what is compiled outside of it.

    torch 2.5 has no such tag, nor an AOTAutograd cache that is on by default."""
    config: Any = getattr(torch.compiler, "config", None)
    return config.patch(cache_key_tag=f"{config.cache_key_tag} {tag}".strip()) if config else nullcontext()


def without_locality_reordering() -> Any:
    """A context manager under which Inductor leaves the nodes of an inference graph in their order.

    It would move each producer next to its first user, counted from the outputs, and with it waits to the front.
    """
    from torch._inductor import config

    return config.patch(reorder_for_locality=False)


def trace_artifact(name: str, payload: Callable[[], str]) -> None:
    """Adds a JSON artifact to torch's structured trace (TORCH_TRACE), which tlparse shows."""
    from torch._logging._internal import trace_structured

    trace_structured(
        "artifact", metadata_fn=lambda: {"name": name, "encoding": "json"}, payload_fn=payload, expect_trace_id=False
    )


def is_graph_break(error: BaseException) -> bool:
    """Whether `error` is Dynamo's refusal, under fullgraph=True, of what it would otherwise break the graph at."""
    from torch._dynamo.exc import Unsupported

    return isinstance(error, Unsupported)
