"""SGLang's plugin, loaded by it in every process, the scheduler's included: `SGLANG_PLUGINS=tp_inductor`.

SGLang calls `torch.compile` without a backend (`--enable-torch-compile`), and runs each plugin that is installed,
unless SGLANG_PLUGINS says which. Installing us must change nothing, so this one does nothing unless it is named there.
Written after SGLang's source (autumn 2026); not run: SGLang needs a GPU. Our options come from the environment.
"""

from __future__ import annotations

import os

from tp_compile_pass.switch import NAME, set_default


def select() -> None:
    """Makes `tp_inductor` the default backend of this process, if the user asked for the plugin by name.

    Raises RuntimeError before torch 2.13, which SGLang logs.
    """
    if NAME in (name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")):
        set_default()
