"""The traced bodies: each starts functional collectives on the user's tensors and returns a handle.

Dynamo inlines these in place of the dist.* call, so a collective starts where the user started it. Nothing here is seen
by autograd, as nothing in c10d is: gradients pass an in-place collective as if it were not there.
"""

from __future__ import annotations

from typing import Any

import torch

from tp_compile_pass.capture.work.handle import WorkHandle


def all_reduce(tensors: Any, op: str, group: str) -> WorkHandle:
    with torch.no_grad():
        results = [torch.ops._c10d_functional.all_reduce(t.contiguous(), op, group) for t in tensors]
    return WorkHandle(results, list(tensors))


def broadcast(tensor: Any, root: int, group: str) -> WorkHandle:
    with torch.no_grad():
        results = [torch.ops._c10d_functional.broadcast(tensor.contiguous(), root, group)]
    return WorkHandle(results, [tensor])


def reduce(tensor: Any, op: str, is_root: bool, group: str) -> WorkHandle:
    """There is no functional reduce: every rank takes part in an all_reduce, and the root alone keeps the result."""
    with torch.no_grad():
        results = [torch.ops._c10d_functional.all_reduce(tensor.contiguous(), op, group)]
    return WorkHandle(results, [tensor if is_root else None])


def all_gather_into_tensor(outputs: Any, inputs: Any, size: int, group: str) -> WorkHandle:
    results = []
    with torch.no_grad():
        for i in range(len(outputs)):
            flat = inputs[i].reshape(1) if inputs[i].dim() == 0 else inputs[i].contiguous()
            _require("all_gather", outputs[i], inputs[i], size)
            results.append(torch.ops._c10d_functional.all_gather_into_tensor(flat, size, group))
    return WorkHandle(results, list(outputs))


def reduce_scatter_tensor(outputs: Any, inputs: Any, op: str, size: int, group: str) -> WorkHandle:
    results = []
    with torch.no_grad():
        for i in range(len(outputs)):
            _require("reduce_scatter", inputs[i], outputs[i], size)
            plain = outputs[i].dim() > 0 and inputs[i].dim() > 0 and inputs[i].shape[0] == outputs[i].shape[0] * size
            source = inputs[i].contiguous() if plain else inputs[i].reshape(-1)
            results.append(torch.ops._c10d_functional.reduce_scatter_tensor(source, op, size, group))
    return WorkHandle(results, list(outputs))


def all_gather(outputs: Any, tensor: Any, size: int, rank: int, group: str) -> WorkHandle:
    if len(outputs) != size:
        raise ValueError("all_gather: one output per rank of the group is needed")
    with torch.no_grad():
        if all([out.numel() == tensor.numel() for out in outputs]):
            gathered = torch.ops._c10d_functional.all_gather_into_tensor(tensor.reshape(-1), size, group)
            return WorkHandle([gathered], [outputs])
        # Sizes that differ from rank to rank: one broadcast from each.
        results = [
            torch.ops._c10d_functional.broadcast((tensor if i == rank else outputs[i]).contiguous(), i, group)
            for i in range(size)
        ]
    return WorkHandle(results, list(outputs))


def reduce_scatter(output: Any, inputs: Any, op: str, size: int, group: str) -> WorkHandle:
    if len(inputs) != size or not all([t.numel() == output.numel() for t in inputs]):
        raise ValueError("reduce_scatter: one input of the output's size per rank of the group is needed")
    with torch.no_grad():
        flat = torch.cat([t.reshape(-1) for t in inputs])
        results = [torch.ops._c10d_functional.reduce_scatter_tensor(flat, op, size, group)]
    return WorkHandle(results, [output])


def all_to_all(outputs: Any, inputs: Any, group: str) -> WorkHandle:
    with torch.no_grad():
        flat = torch.cat([t.reshape(-1) for t in inputs])
        results = [
            torch.ops._c10d_functional.all_to_all_single(
                flat, [t.numel() for t in outputs], [t.numel() for t in inputs], group
            )
        ]
    return WorkHandle(results, [outputs])


def gather(tensor: Any, outputs: Any, root: int, size: int, rank: int, group: str) -> WorkHandle:
    """An all-to-all in which every rank sends to the root alone."""
    with torch.no_grad():
        sends = [tensor.numel() if i == root else 0 for i in range(size)]
        receives = [tensor.numel() if rank == root else 0 for i in range(size)]
        results = [torch.ops._c10d_functional.all_to_all_single(tensor.reshape(-1), receives, sends, group)]
    return WorkHandle(results, [outputs if rank == root else None])


def scatter(tensor: Any, inputs: Any, root: int, size: int, rank: int, group: str) -> WorkHandle:
    """An all-to-all in which the root alone sends."""
    with torch.no_grad():
        flat = torch.cat([t.reshape(-1) for t in inputs]) if rank == root else tensor.new_empty(0)
        sends = [tensor.numel() if rank == root else 0 for i in range(size)]
        receives = [tensor.numel() if i == root else 0 for i in range(size)]
        results = [torch.ops._c10d_functional.all_to_all_single(flat, receives, sends, group)]
    return WorkHandle(results, [tensor])


def barrier(device: str, group: str) -> WorkHandle:
    """There is no functional barrier: an all_reduce of one number keeps its place among the group's collectives."""
    with torch.no_grad():
        token = torch.ones(1, device=device)
        results = [torch.ops._c10d_functional.all_reduce(token, "sum", group)]
    return WorkHandle(results, [None])


def send(tensor: Any, peer: int, tag: int, group: str) -> WorkHandle:
    with torch.no_grad():
        results = [torch.ops._c10d_functional.isend(tensor.contiguous(), peer, tag, group)]
    return WorkHandle(results, [None])


def receive(tensor: Any, peer: int, tag: int, group: str) -> WorkHandle:
    with torch.no_grad():
        results = [torch.ops._c10d_functional.irecv(tensor.contiguous(), peer, tag, group)]
    return WorkHandle(results, [tensor])


def batch_p2p(kinds: Any, peers: Any, tags: Any, tensors: Any, group: str) -> Any:
    with torch.no_grad():
        results = torch.ops._c10d_functional.batch_p2p_ops(kinds, peers, tags, [t.contiguous() for t in tensors], group)
    return [WorkHandle([results[i]], [tensors[i] if kinds[i] == "irecv" else None]) for i in range(len(kinds))]


def all_to_all_single(
    output: Any, tensor: Any, output_splits: Any, input_splits: Any, size: int, group: str
) -> WorkHandle:
    if output.dtype != tensor.dtype:
        raise ValueError("all_to_all_single: input and output have different types")
    if not output_splits:
        output_splits = [output.shape[0] // size] * size
    if not input_splits:
        input_splits = [tensor.shape[0] // size] * size
    if sum(output_splits) != output.shape[0] or sum(input_splits) != tensor.shape[0]:
        raise ValueError("all_to_all_single: the split sizes do not add up to the tensor's size in dimension 0")
    with torch.no_grad():
        results = [
            torch.ops._c10d_functional.all_to_all_single(tensor.contiguous(), output_splits, input_splits, group)
        ]
    return WorkHandle(results, [output])


def _require(kind: str, large: Any, small: Any, size: int) -> None:
    if large.dtype != small.dtype:
        raise ValueError(kind + ": input and output have different types")
    if large.numel() != small.numel() * size:
        raise ValueError(kind + ": the sizes of input and output do not match the group's size")
