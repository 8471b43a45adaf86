"""AOTAutograd's joint graph, before it is split into forward and backward: all of it is private.

Checked on torch 2.5.1, 2.6.0, 2.9.1, 2.13.0 and 2.15.0.

The hook is the `partition_fn` that Inductor hands to AOTAutograd, wrapped on its way there. `joint_custom_pre_pass` in
Inductor's config would be the documented place, but it is part of the cache keys (torch 2.5 and 2.6 refuse to cache
under it), holds one callable that the user may have set, and sees the joint graph alone; `custom_partitioner_fn` exists
from 2.9 on. AOTAutograd's key knows nothing of `partition_fn`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.fx import GraphModule, Node

from tp_compile_pass.compat import CHECKED

#: Called with a joint graph before it is split; what it returns is called with the forward and the backward graph.
Watch = Callable[[GraphModule], Callable[[GraphModule, GraphModule], None]]
_watch: ContextVar[Watch | None] = ContextVar("tp_compile_pass_partition", default=None)


def watching_refused() -> str:
    """Why joint graphs cannot be seen on this torch; "" where they can."""
    try:
        _install()
    except (ImportError, AttributeError) as error:
        return f"torch {torch.__version__} splits them elsewhere than {', '.join(CHECKED)}: {error}"
    return ""


@contextmanager
def watching_partitions(watch: Watch) -> Iterator[None]:
    """While this is open, `watch` sees each joint graph that this thread splits, those of nested regions too.
    Compilations of other threads, and those outside, go unseen."""
    _install()
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


@functools.cache
def _install() -> None:
    from torch._dynamo.backends import common

    original = common.aot_module_simplified

    @functools.wraps(original)
    def aot_module_simplified(*args: Any, **kwargs: Any) -> Any:
        watch, partition = _watch.get(), kwargs.get("partition_fn")
        if watch is not None and partition is not None:
            kwargs["partition_fn"] = _watched(partition, watch)
        return original(*args, **kwargs)

    common.aot_module_simplified = aot_module_simplified


def _watched(partition: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @functools.wraps(partition)
    def watched(joint: GraphModule, *args: Any, **kwargs: Any) -> Any:
        compare = watch(joint)
        forward, backward = partition(joint, *args, **kwargs)
        compare(forward, backward)
        return forward, backward

    return watched


def is_recomputed(node: Node) -> bool:
    """Whether an activation checkpoint asks the partitioner to compute `node` again in the backward graph."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def recomputation_asked() -> str:
    """The setting by which the user lets the partitioner compute collectives again; "" where there is none.

    A smaller memory budget does so up to torch 2.6; later versions keep collectives out of it unless the last one is
    set."""
    from torch._functorch import config

    if config.activation_memory_budget < 1:
        return "activation_memory_budget"
    names = ("aggressive_recomputation", "unsafe_allow_optimization_of_collectives")
    return next((name for name in names if getattr(config, name, False)), "")


def joint_passes_of_the_user() -> str:
    """The setting by which code of the user's changes or splits the joint graph; "" where there is none."""
    from torch._inductor import config

    names = ("joint_custom_pre_pass", "joint_custom_post_pass", "custom_partitioner_fn")
    return next((name for name in names if getattr(config, name, None) is not None), "")


def has_effects_or_draws(node: Node) -> bool:
    """Whether two calls of what `node` calls may differ on equal arguments: it draws random numbers or writes."""
    schema = getattr(node.target, "_schema", None)
    writes = schema is not None and schema.is_mutable
    return bool(writes or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()))
