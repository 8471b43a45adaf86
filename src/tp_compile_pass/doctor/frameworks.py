"""The frameworks that users reach us through: by which package each is known, and how it is given the backend's name.

docs/frameworks.md says more on each, and which of this was run by tests.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Framework(NamedTuple):
    name: str
    package: str
    how: str


FRAMEWORKS = (
    Framework(
        "accelerate",
        "accelerate",
        'import tp_compile_pass.integrations.accelerate; Accelerator(dynamo_backend="tp_inductor")',
    ),
    Framework(
        "transformers",
        "transformers",
        'model.compile(backend="tp_inductor"); TrainingArguments(torch_compile_backend="tp_inductor") after the import '
        "for accelerate",
    ),
    Framework("TRL", "trl", "as transformers: SFTConfig(torch_compile_backend=…) after the import for accelerate"),
    Framework("Lightning Fabric", "lightning-fabric", 'fabric.setup(torch.compile(model, backend="tp_inductor"))'),
    Framework("Lightning", "lightning", 'torch.compile(model, backend="tp_inductor") in configure_model'),
    Framework("DeepSpeed", "deepspeed", 'engine.compile(backend="tp_inductor")'),
    Framework(
        "torchtitan",
        "torchtitan",
        "--compile.enable --compile.backend tp_inductor "
        "--override.imports tp_compile_pass.integrations.torchtitan.tp_inductor",
    ),
    Framework("torchtune", "torchtune", "TORCH_COMPILE_BACKEND=tp_inductor"),
    Framework("NeMo Automodel", "nemo-automodel", "compile: {enabled: true, backend: tp_inductor} in its YAML"),
    Framework("LitGPT", "litgpt", "tp_compile_pass.set_default(), or patch_inductor() before torch 2.13"),
    Framework("vLLM", "vllm", '--compilation-config \'{"mode": 1, "backend": "tp_inductor"}\''),
    Framework("SGLang", "sglang", "SGLANG_PLUGINS=tp_inductor with --enable-torch-compile"),
)


def installed() -> list[tuple[Framework, str]]:
    """Those that are installed, with their versions. Imports none of them."""
    found = []
    for framework in FRAMEWORKS:
        try:
            found.append((framework, version(framework.package)))
        except PackageNotFoundError:
            continue
    return found
