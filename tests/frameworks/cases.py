"""The frameworks: how each is given the backend's name, by which of our examples that is run, and what it must show."""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Case(NamedTuple):
    """A function of an example, run on two ranks as `function("no")` and as `function("tp_inductor")`."""

    framework: str
    package: str
    part: str
    example: str
    how: str
    function: str = "run"
    #: Phases of which a graph with a collective in it must be in our report.
    phases: tuple[str, ...] = ("forward", "backward")
    compared: str = "losses of 3 steps, gradients"

    @property
    def name(self) -> str:
        return f"{self.framework} {self.part}".strip()

    @property
    def version(self) -> str:
        """The installed version; "" where it is not installed."""
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""


GENERATED = "tokens and logits of generation"

CASES = (
    Case(
        "accelerate",
        "accelerate",
        "",
        "accelerate_tp",
        'import tp_compile_pass.integrations.accelerate; Accelerator(dynamo_backend="tp_inductor")',
    ),
    Case(
        "transformers",
        "transformers",
        "training",
        "transformers_tp",
        'model.compile(backend="tp_inductor")',
        "train",
    ),
    Case(
        "transformers",
        "transformers",
        "generate",
        "transformers_tp",
        'generate(compile_config=CompileConfig(backend="tp_inductor", mode=None))',
        "generate",
        ("inference",),
        GENERATED,
    ),
    Case(
        "Lightning Fabric",
        "lightning-fabric",
        "",
        "fabric_tp",
        'fabric.setup(torch.compile(model, backend="tp_inductor"))',
    ),
    Case("DeepSpeed", "deepspeed", "", "deepspeed_tp", 'engine.compile(backend="tp_inductor")'),
)
