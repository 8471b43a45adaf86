"""`torch.compile(model, backend="tp_inductor")` for tensor-parallel code."""

from tp_compile_pass.backend import tp_inductor
from tp_compile_pass.explain import explain
from tp_compile_pass.options import TPOptionError, TPOptions
from tp_compile_pass.report.record import GraphReport, Report, reports
from tp_compile_pass.switch import patch_inductor, set_default

__version__ = "0.1.0"
__all__ = [
    "GraphReport",
    "Report",
    "TPOptionError",
    "TPOptions",
    "explain",
    "patch_inductor",
    "reports",
    "set_default",
    "tp_inductor",
]
