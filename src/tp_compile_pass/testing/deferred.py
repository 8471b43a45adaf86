"""A process group that starts nothing before `wait()` and poisons results until then.

On a fast link a forgotten or misplaced wait goes unnoticed: the data has arrived anyway. Here it never has. When a
collective is issued, its inputs are set aside and its outputs are filled with NaN. The first `wait()` of any lets what
was issued run (over gloo), and only its own `wait()` publishes a collective's result. So a lost wait shows as NaN, a
read too early as NaN, and a buffer that is written while it is in flight as DeferredError.

    deferred.register()
    dist.init_process_group("deferred", ...)        # or RankPool(2, "deferred", setup=deferred.register)
    work = dist.all_reduce(x, async_op=True)        # x is NaN now
    work.wait()                                     # x is the sum now
    assert deferred.pending() == []                 # what was issued and never waited for

Integers have no NaN and hold the least value of their type (the greatest, if unsigned) instead; booleans hold True. All
ranks issue their collectives in one order per group, as everywhere; they may wait in any order. CPU tensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tp_compile_pass import compat

NAME = "deferred"

Tensors = list[torch.Tensor]
#: Starts the real collective on the inputs set aside, and returns what to wait for and how to get the results.
Launch = Callable[[Tensors], tuple[list[Any], Callable[[], Tensors]]]


class DeferredError(RuntimeError):
    """A buffer was written while a collective had it in flight. The message names the collective and the buffer."""


_pending: dict[int, DeferredWork] = {}
_issued = 0


def register() -> None:
    """Makes "deferred" a backend that `dist.init_process_group` and `dist.new_group` know. May be called again."""
    if hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, _create, devices=["cpu"])
    compat.let_dynamo_trace_process_group(DeferredProcessGroup)


def pending() -> list[str]:
    """What this rank issued and has not waited for, oldest first: "all_reduce of (2, 3) float32 on group 0", …"""
    return [work.label for work in _pending.values()]


def finish_pending() -> None:
    """Waits for everything this rank issued; every rank has to call it."""
    for work in list(_pending.values()):
        work.wait()


def poison(tensor: torch.Tensor) -> None:
    """Fills `tensor` with NaN, or with what stands for it where its type has none."""
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        value: Any = float("nan")
    elif dtype is torch.bool:
        value = True
    else:
        value = torch.iinfo(dtype).min or torch.iinfo(dtype).max
    _writable(tensor).fill_(value)


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory, writable without autograd or the tensor's version counter noticing: gloo's threads write
    that way, too."""
    return tensor.data


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Bitwise equality, in which NaN equals itself."""
    left, right = left.contiguous(), right.contiguous()
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.data.clone(memory_format=torch.contiguous_format)


class DeferredWork(dist.Work):  # type: ignore[misc]
    """The handle of one collective. Everything that reports completion says no before `wait()`."""

    def __init__(self, label: str, reads: Tensors, writes: Tensors, launch: Launch) -> None:
        global _issued
        super().__init__()
        self.label = label
        self._reads, self._writes, self._launch = reads, writes, launch
        self._set_aside = [_copy(tensor) for tensor in reads]
        for tensor in writes:
            poison(tensor)
        self._poisoned = [_copy(tensor) for tensor in writes]
        self._written = {tensor.untyped_storage().data_ptr() for tensor in writes}
        self._works: list[Any] | None = None
        self._results: Callable[[], Tensors] | None = None
        self._number = _issued
        _issued += 1
        _pending[self._number] = self  # also keeps this object alive while only C++ holds the work

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        if self._number not in _pending:
            return True
        # All that was issued starts, in order: other ranks may wait in another order, and a send ends with its receive.
        for work in list(_pending.values()):
            work._start()
        del _pending[self._number]
        assert self._works is not None and self._results is not None
        for real in self._works:
            real.wait()
        self._check_untouched()
        for target, result in zip(self._writes, self._results(), strict=True):
            _writable(target).copy_(result.view(target.shape))
        self._reads, self._writes, self._set_aside, self._poisoned, self._results = [], [], [], [], None
        return True

    def _start(self) -> None:
        if self._works is None:
            self._works, self._results = self._launch([_copy(tensor) for tensor in self._set_aside])

    def _check_untouched(self) -> None:
        for buffer, before in zip(self._writes, self._poisoned, strict=True):
            if not _same(buffer.data, before):
                raise DeferredError(f"an output of {self.label} was written before its wait")
        for buffer, before in zip(self._reads, self._set_aside, strict=True):
            if buffer.untyped_storage().data_ptr() not in self._written and not _same(buffer.data, before):
                raise DeferredError(f"an input of {self.label} was written before its wait")

    def is_completed(self) -> bool:
        return self._number not in _pending

    def is_success(self) -> bool:
        return self.is_completed()

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Tensors:  # type: ignore[override]
        self.wait()
        return list(self._writes)

    def get_future(self) -> DeferredFuture:  # type: ignore[override]
        return DeferredFuture(self, list(self._writes))


class DeferredFuture(torch.futures.Future):  # type: ignore[misc]
    """The future of a DeferredWork; completes in `wait()` and not before."""

    def __init__(self, work: DeferredWork, value: Any, then: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._work, self._value, self._then = work, value, then

    def wait(self) -> Any:
        self._work.wait()
        if not super().done():
            self.set_result(self._then(self) if self._then else self._value)
        return super().wait()

    def done(self) -> bool:
        return self._work.is_completed()

    def value(self) -> Any:
        if not self.done():
            raise RuntimeError(f"the future of {self._work.label} has no value before wait()")
        return self.wait()

    def then(self, callback: Callable[[Any], Any]) -> DeferredFuture:  # type: ignore[override]
        inner = DeferredFuture(self._work, self._value, self._then)
        return DeferredFuture(self._work, None, lambda _: callback(_after(inner)))


def _after(future: DeferredFuture) -> DeferredFuture:
    future.wait()
    return future


class DeferredProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The group. Its own gloo group, which carries the data, also answers what is not a collective."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._gloo)
        self._me, self._ranks = rank, size

    def getBackendName(self) -> str:  # the names below are those of c10d's bindings
        return NAME

    def name(self) -> str:
        return NAME

    def allreduce(self, tensors: Tensors, opts: Any = None) -> DeferredWork:
        return self._reduced("all_reduce", _list(tensors), _reduce_op(opts), keep=True)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> DeferredWork:
        return self._reduced("all_reduce", _list(tensors), _reduce_op(opts), keep=True)

    def reduce(self, tensors: Tensors, opts: Any = None) -> DeferredWork:
        return self._reduced("reduce", _list(tensors), _reduce_op(opts), keep=opts is None or opts.rootRank == self._me)

    def _reduced(self, kind: str, tensors: Tensors, op: Any, keep: bool) -> DeferredWork:
        def launch(inputs: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            works = [self._all_reduce(tensor, op) for tensor in inputs]
            return works, lambda: [self._averaged(tensor, op) for tensor in inputs] if keep else []

        return self._issue(kind, tensors, tensors if keep else [], launch)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> DeferredWork:
        options = opts or dist.BroadcastOptions()

        def launch(inputs: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            return [self._gloo.broadcast(inputs, options)], lambda: inputs if options.rootRank != self._me else []

        tensors = _list(tensors)
        return self._issue("broadcast", tensors, [] if options.rootRank == self._me else tensors, launch)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> DeferredWork:
        if not isinstance(outputs[0], (list, tuple)):
            return self._gathered([list(outputs)], _list(inputs))  # type: ignore[arg-type]
        return self._gathered(outputs, _list(inputs))

    def allgather_coalesced(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> DeferredWork:
        return self._gathered([[row[i] for row in outputs] for i in range(len(inputs))], inputs)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> DeferredWork:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> DeferredWork:
        for output, tensor in zip(outputs, inputs, strict=True):
            _require("all_gather", output, tensor, self._ranks)

        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            gathered = [torch.empty(self._ranks * copy.numel(), dtype=copy.dtype) for copy in copies]
            works = [
                self._gloo.allgather([list(whole.view(self._ranks, -1).unbind())], [copy.view(-1)])
                for whole, copy in zip(gathered, copies, strict=True)
            ]
            return works, lambda: gathered

        return self._issue("all_gather", inputs, outputs, launch)

    def _gathered(self, outputs: list[Tensors], inputs: Tensors) -> DeferredWork:
        """All-gather into lists of tensors, which may differ in size from rank to rank."""
        for row in outputs:
            if len(row) != self._ranks:
                raise ValueError(f"all_gather needs {self._ranks} outputs, one per rank, and got {len(row)}")

        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            results = [[torch.empty(out.shape, dtype=out.dtype) for out in row] for row in outputs]
            works = []
            for row, copy in zip(results, copies, strict=True):
                for root, out in enumerate(row):
                    if root == self._me:
                        out.copy_(copy)
                    works.append(self._broadcast(out, root))
            return works, lambda: [out for row in results for out in row]

        return self._issue("all_gather", inputs, [out for row in outputs for out in row], launch)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> DeferredWork:
        op, count = _reduce_op(opts), [len(row) for row in inputs]

        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            works = [self._all_reduce(copy, op) for copy in copies]
            mine = [sum(count[:i]) + self._me for i in range(len(count))]
            return works, lambda: [self._averaged(copies[i], op) for i in mine]

        return self._issue("reduce_scatter", [t for row in inputs for t in row], outputs, launch)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> DeferredWork:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> DeferredWork:
        op = _reduce_op(opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            _require("reduce_scatter", tensor, output, self._ranks)

        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            works = [self._all_reduce(copy, op) for copy in copies]
            return works, lambda: [self._averaged(copy.view(self._ranks, -1)[self._me], op) for copy in copies]

        return self._issue("reduce_scatter", inputs, outputs, launch)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, out_splits: list[int], in_splits: list[int], opts: Any = None
    ) -> DeferredWork:
        out_splits = list(out_splits) or [output.shape[0] // self._ranks] * self._ranks
        in_splits = list(in_splits) or [tensor.shape[0] // self._ranks] * self._ranks
        if sum(out_splits) != output.shape[0] or sum(in_splits) != tensor.shape[0]:
            raise RuntimeError("all_to_all: the split sizes do not add up to the tensor's size in dimension 0")

        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            result = torch.empty(output.shape, dtype=output.dtype)
            return [self._gloo.alltoall_base(result, copies[0], out_splits, in_splits)], lambda: [result]

        return self._issue("all_to_all", [tensor], [output], launch)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> DeferredWork:
        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            flat = torch.cat([copy.view(-1) for copy in copies])
            result = torch.empty(sum(out.numel() for out in outputs), dtype=flat.dtype)
            sizes = [out.numel() for out in outputs]
            work = self._gloo.alltoall_base(result, flat, sizes, [copy.numel() for copy in copies])
            return [work], lambda: list(result.split(sizes))

        return self._issue("all_to_all", inputs, outputs, launch)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> DeferredWork:
        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            results = [[torch.empty(out.shape, dtype=out.dtype) for out in row] for row in outputs]
            return [self._gloo.gather(results, copies, opts)], lambda: [out for row in results for out in row]

        return self._issue("gather", inputs, [out for row in outputs for out in row], launch)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> DeferredWork:
        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            results = [torch.empty(out.shape, dtype=out.dtype) for out in outputs]
            return [self._gloo.scatter(results, [copies] if copies else [], opts)], lambda: results

        return self._issue("scatter", [t for row in inputs for t in row], outputs, launch)

    def barrier(self, opts: Any = None) -> DeferredWork:
        return self._issue("barrier", [], [], lambda _: ([self._gloo.barrier()], list))

    def send(self, tensors: Tensors, dst: int, tag: int) -> DeferredWork:
        def launch(copies: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            return [self._gloo.send(copies, dst, tag)], list

        return self._issue("send", tensors, [], launch)

    def recv(self, tensors: Tensors, src: int, tag: int) -> DeferredWork:
        return self._received(tensors, lambda results: self._gloo.recv(results, src, tag))

    def recv_anysource(self, tensors: Tensors, tag: int) -> DeferredWork:
        return self._received(tensors, lambda results: self._gloo.recv_anysource(results, tag))

    def _received(self, tensors: Tensors, start: Callable[[Tensors], Any]) -> DeferredWork:
        def launch(_: Tensors) -> tuple[list[Any], Callable[[], Tensors]]:
            results = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
            return [start(results)], lambda: results

        return self._issue("recv", [], tensors, launch)

    # The names that torch 2.13 introduced for the same things.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    def _issue(self, kind: str, reads: Sequence[Any], writes: Sequence[Any], launch: Launch) -> DeferredWork:
        tensors = [*reads, *writes]
        what = f" of {tuple(tensors[0].shape)} {str(tensors[0].dtype).removeprefix('torch.')}" if tensors else ""
        return DeferredWork(f"{kind}{what} on group {self.group_name}", list(reads), list(writes), launch)

    def _all_reduce(self, tensor: torch.Tensor, op: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if op == dist.ReduceOp.AVG else op
        return self._gloo.allreduce([tensor], options)

    def _averaged(self, tensor: torch.Tensor, op: Any) -> torch.Tensor:
        """Gloo has no AVG on older versions; it is the sum divided here."""
        return tensor / self._ranks if op == dist.ReduceOp.AVG else tensor

    def _broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._gloo.broadcast([tensor], options)


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> DeferredProcessGroup:
    return DeferredProcessGroup(store, rank, size, timeout)


def _list(tensors: Any) -> Tensors:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reduce_op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)


def _require(kind: str, large: torch.Tensor, small: torch.Tensor, ranks: int) -> None:
    if large.dtype != small.dtype:
        raise TypeError(f"{kind}: input and output have types {small.dtype} and {large.dtype}")
    if large.numel() != small.numel() * ranks:
        raise ValueError(
            f"{kind}: {large.numel()} elements on one side are not {ranks} times the {small.numel()} there"
        )
