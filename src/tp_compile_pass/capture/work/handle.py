"""The stand-in for `dist.Work` that Dynamo can trace, and for its Future.

torch's Work is a C++ object, which Dynamo can neither trace nor subclass. This is plain Python with the same methods.
It holds the results of functional collectives and the user's tensors they belong in; `wait()` puts them there. Since it
is plain Python it may leave the compiled region (returned, stored, across a graph break) and be waited for in eager.

`isinstance(handle, dist.Work)` is true: in eager through `__class__`, while tracing through
`compat_dynamo.answer_isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def publish(results: Any, targets: Any) -> None:
    """Waits for `results` and writes each where it belongs, unseen by autograd as all that c10d does: a target is one
    tensor, a list of tensors that share the result, or None."""
    with torch.no_grad():
        for i in range(len(results)):
            done, target = torch.ops._c10d_functional.wait_tensor(results[i]), targets[i]
            if isinstance(target, (list, tuple)):
                flat, start = done.view(-1), 0
                for part in target:
                    part.copy_(flat[start : start + part.numel()].view(part.shape))
                    start += part.numel()
            elif target is not None:
                target.copy_(done.view(target.shape))


class WorkHandle:
    """A collective in flight. `results` are the functional collectives' outputs, `targets` where they go (see
    `publish`)."""

    def __init__(self, results: Any, targets: Any) -> None:
        self._results = results
        self._targets = targets
        self._done = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return dist.Work

    def wait(self, timeout: Any = None) -> bool:
        if not self._done:
            self._done = True
            publish(self._results, self._targets)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Completes the collective first: a traced program cannot poll, and eager promises only that it ends."""
        return self.wait()

    def is_success(self) -> bool:
        return self.wait()

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        self.wait()
        found: Any = []
        for target in self._targets:
            if isinstance(target, (list, tuple)):
                found.extend(target)
            elif target is not None:
                found.append(target)
        return found

    def get_future(self) -> FutureHandle:
        return FutureHandle(self, None)


class FutureHandle:
    """The future of a WorkHandle. `then` waits at once: its callback may run no earlier, and must not get lost."""

    def __init__(self, work: Any, value: Any) -> None:
        self._work = work
        self._value = value

    def wait(self) -> Any:
        if self._work is None:
            return self._value
        return self._work.result()

    def value(self) -> Any:
        return self.wait()

    def done(self) -> bool:
        self.wait()
        return True

    def then(self, callback: Callable[[Any], Any]) -> FutureHandle:
        self.wait()
        return FutureHandle(None, callback(self))

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        self.wait()
        callback(self)
