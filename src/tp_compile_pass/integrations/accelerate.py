"""Importing this module makes `tp_inductor` a dynamo backend that accelerate accepts.

    import tp_compile_pass.integrations.accelerate

    Accelerator(dynamo_backend="tp_inductor")
    TorchDynamoPlugin(backend="tp_inductor", options={...})
    TrainingArguments(torch_compile_backend="tp_inductor")  # transformers, and what builds on it, as TRL does

A script that cannot be changed runs, with the import done and `tp_inductor` selected, as

    accelerate launch … -m tp_compile_pass.integrations.accelerate train.py …     (or torchrun)

accelerate looks a backend's name up in an enum, `DynamoBackend`, that lists the backends of its time. Python's enums
ask their `_missing_` for a value that they do not have; here it knows one more, and any other stays an error. Checked
with accelerate 1.15.0. The launcher, a process of its own, still refuses `--dynamo_backend tp_inductor`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from accelerate.utils import DynamoBackend

from tp_compile_pass.switch import NAME

#: accelerate writes its backends' names in capitals, and lowers them for torch.
VALUE = NAME.upper()


def _install() -> None:
    before = DynamoBackend._missing_
    member = str.__new__(DynamoBackend, VALUE)
    member._name_ = member._value_ = VALUE

    def missing(cls: type, value: object) -> Any:
        return member if value == VALUE else before(value)

    DynamoBackend._missing_ = classmethod(missing)


if VALUE not in DynamoBackend:
    _install()


def main() -> None:
    """Runs the script that the command line names, and its arguments, under `tp_inductor`."""
    if len(sys.argv) < 2:
        sys.exit("usage: accelerate launch … -m tp_compile_pass.integrations.accelerate SCRIPT [ARGUMENTS]")
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)  # where Python looks first, had it started the script
    os.environ["ACCELERATE_DYNAMO_BACKEND"] = VALUE  # the launcher has written its own choice there: none
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
