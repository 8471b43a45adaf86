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
