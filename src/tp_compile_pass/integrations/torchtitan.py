"""Importing this module makes torchtitan take `tp_inductor` for models with FlexAttention, too.

    --compile.enable --compile.backend tp_inductor
    --override.imports tp_compile_pass.integrations.torchtitan.tp_inductor

torchtitan hands FlexAttention to Inductor by name and refuses every other backend for it, because the attention would
be run op by op there. `tp_inductor` is Inductor, so that does not hold for it. Models with other attention take the
name without this module. torchtitan has no channel for a backend's options; ours can be given here:

    --override.imports 'tp_compile_pass.integrations.torchtitan.tp_inductor={"overlap": false}'

Checked with torchtitan 0.3.0; a torchtitan that chooses its backend in another way is an ImportError.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import override
from torchtitan.distributed import compile as titan

from tp_compile_pass.options import ENV_PREFIX, PREFIX, TPOptions
from tp_compile_pass.switch import NAME

_CHOICE = "_maybe_regional_inductor_backend"


def _install() -> None:
    choose = getattr(titan, _CHOICE, None)
    if choose is None:
        raise ImportError(f"torchtitan.distributed.compile has no {_CHOICE}: checked with torchtitan 0.3.0")

    @functools.wraps(choose)
    def backend_for(model: Any, backend: Any) -> Any:
        return backend if backend == NAME else choose(model, backend)

    setattr(titan, _CHOICE, backend_for)


_install()


# An override has to replace some config. This one, which there is once and which nobody else replaces, by itself.
@override(target=MetricsProcessor.Config, description="models with FlexAttention compile with tp_inductor")
def tp_inductor(config: MetricsProcessor.Config, **options: Any) -> MetricsProcessor.Config:
    """Takes options of ours, as `tp.overlap` without the `tp.`, for every compilation of this process.

    Raises TPOptionError on one that does not exist or has a value it cannot have.
    """
    TPOptions.split({PREFIX + name: value for name, value in options.items()})
    os.environ.update({ENV_PREFIX + name.upper(): str(value) for name, value in options.items()})
    return config
