"""What goes wrong on which torch when tensor-parallel code is compiled, and what `tp_inductor` does about it.

Measured on the versions of `compat.CHECKED` (docs/call-sites.md, work.md, boundary.md, verify.md, overlap.md have the
details and the tests behind each row); between two of them the later one's behaviour is assumed from where it is known.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Version = tuple[int, int]
OLDEST: Version = (2, 5)
NEVER: Version = (99, 0)


class Problem(NamedTuple):
    """`what` goes wrong with `backend="inductor"` from torch `first` on, and no longer in torch `gone`. `ours`: whether
    `tp_inductor` mends it. `advice`: the one thing to do; "" where selecting `tp_inductor` is all. `page`: in docs/."""

    what: str
    first: Version
    gone: Version
    ours: Literal["mended", "not mended"]
    advice: str
    page: str

    def concerns(self, torch: Version) -> bool:
        return self.first <= torch < self.gone


PROBLEMS = (
    Problem(
        "x.wait() and x.trigger_wait() of an AsyncCollectiveTensor crash in AOTAutograd",
        (2, 5),
        (2, 6),
        "mended",
        "",
        "call-sites.md",
    ),
    Problem(
        "dist.*(async_op=True) and Work.wait() break the graph",
        OLDEST,
        NEVER,
        "mended",
        "",
        "work.md",
    ),
    Problem("dist._coalescing_manager breaks the graph", OLDEST, (2, 13), "mended", "", "work.md"),
    Problem(
        "batch_isend_irecv, isend and irecv break the graph: there are no functional send and receive",
        OLDEST,
        (2, 13),
        "not mended",
        "use torch 2.13 or later where these have to be compiled",
        "work.md",
    ),
    Problem("batch_isend_irecv, isend and irecv break the graph", (2, 13), NEVER, "mended", "", "work.md"),
    Problem(
        "an async tensor that enters a compiled region: training fails, or silently loses a gradient",
        (2, 13),
        NEVER,
        "mended",
        "",
        "boundary.md",
    ),
    Problem(
        "an async tensor that enters a compiled region: wrong values where it is written to, an error where a view of "
        "it is returned",
        OLDEST,
        (2, 13),
        "mended",
        "",
        "boundary.md",
    ),
    Problem(
        "an all_reduce of a tensor that is not contiguous waits on another buffer than was sent: a silent race",
        (2, 7),
        (2, 13),
        "mended",
        "",
        "verify.md",
    ),
    Problem(
        "on CPU, a kernel that reads an all_reduce's result may run before its wait: a silent race",
        (2, 13),
        (2, 15),
        "mended",
        "",
        "verify.md",
    ),
    Problem(
        "an op in place may overwrite what an all_gather, reduce_scatter or all_to_all is still sending: a silent race",
        (2, 9),
        NEVER,
        "mended",
        "",
        "verify.md",
    ),
    Problem(
        "on gloo, two functional all_gathers in flight corrupt memory: a crash or a hang, in eager code, too",
        (2, 7),
        NEVER,
        "mended",
        "",
        "verify.md",
    ),
    Problem(
        "waits are placed right behind their collectives: the overlap that eager code had is gone",
        OLDEST,
        NEVER,
        "mended",
        "",
        "overlap.md",
    ),
    Problem(
        "functional collectives have no gradient (DTensor's own have)",
        OLDEST,
        (2, 13),
        "not mended",
        "train through DTensor or autograd functions, or use torch 2.13 or later",
        "boundary.md",
    ),
    Problem(
        "x.wait() drops the gradient in eager code and keeps it in compiled code",
        OLDEST,
        NEVER,
        "not mended",
        "wait by using the tensor, in an autograd.Function or through Work",
        "index.md",
    ),
    Problem(
        "a Work that eager code started breaks the graph where compiled code waits for it",
        OLDEST,
        NEVER,
        "not mended",
        "start and wait in the same compiled function",
        "work.md",
    ),
    Problem(
        "a function that is used with several process groups compiles once for each",
        OLDEST,
        NEVER,
        "not mended",
        "raise torch._dynamo.config.recompile_limit where there are more than 8",
        "boundary.md",
    ),
)


def problems(torch: Version) -> list[Problem]:
    """Those of a torch release."""
    return [problem for problem in PROBLEMS if problem.concerns(torch)]
