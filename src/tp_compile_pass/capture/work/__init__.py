"""`dist.*(async_op=True)`, `Work` and friends, captured: one `install()` at import, active for tp_inductor alone.

scope.py        when a call is ours; what becomes of one that is not; never-waited handles
handle.py       the stand-in for Work and Future that Dynamo can trace
collectives.py  the traced bodies: start a functional collective, hand out a handle
calls.py        from the arguments of a dist.* call to one of those bodies
coalescing.py   dist._coalescing_manager
nn_functional.py  torch.distributed.nn.functional, which autograd sees
places.py       what was done with each call, for the report
lost.py         the pass that keeps collectives whose result nothing uses
"""

from tp_compile_pass.capture.work.lost import KeepUnused
from tp_compile_pass.capture.work.places import forget, take
from tp_compile_pass.capture.work.scope import install

__all__ = ["KeepUnused", "forget", "install", "take"]
