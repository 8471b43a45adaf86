"""Dynamo's tracing, the private part of it that capture needs (the rest of `compat.py`; same rules, same versions).

Dynamo turns every object a function touches into a `VariableTracker` ("variable" below). What is here swaps the
variable of a chosen function for one that may answer the call itself, but only while `concerns(tx)` holds, so that code
traced for another backend never meets it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from tp_compile_pass.compat import UnsupportedTorch
from tp_compile_pass.report.source import is_library_file

#: A variable of Dynamo's, and the translator that is tracing ("tx"). Private classes that differ by version.
Variable = Any
Translator = Any


class Call:
    """One traced call of an intercepted function, its arguments bound to the parameters' names."""

    def __init__(self, tx: Translator, fn: Callable[..., Any], args: Any, kwargs: dict[str, Variable]) -> None:
        self.tx = tx
        self.what = f"dist.{fn.__name__}"
        signature = _signature(fn)
        self.parameters = signature.parameters
        self.arguments: dict[str, Variable] = signature.bind(*args, **kwargs).arguments

    def constant(self, name: str) -> Any:
        """The value of a parameter that is known while tracing, its default included; NotConstant if it is not."""
        if name not in self.arguments:
            return self.parameters[name].default if name in self.parameters else None
        return constant(self.arguments[name], name)

    def inline(self, fn: Callable[..., Any], *args: Any) -> Variable:
        """Traces `fn` in place of the call. Arguments are variables, or constants (str, int, bool, None, lists)."""
        return inline(self.tx, fn, *args)


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters of `fn`: `args` and `kwargs` where it is written in C and does not tell."""
    try:
        return inspect.signature(fn)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)


#: Answers a call: (the call, what it would be without us) → the variable it returns.
Answer = Callable[[Call, Callable[[], Variable]], Variable]


class NotConstant(Exception):
    """An argument has to be known while tracing and is not. The message names it."""


def constant(variable: Variable, name: str) -> Any:
    """The Python value of a variable. A symbolic one gets a guard, as in an `if`."""
    variable = realized(variable)
    try:
        if is_symbolic(variable):
            return variable.evaluate_expr()
        return _real(variable.as_python_constant())
    except (NotImplementedError, RuntimeError, torch._dynamo.exc.Unsupported):
        # Enums and process groups on older versions, functions on all.
        value = getattr(variable, "value", getattr(variable, "fn", NotConstant))
        if value is NotConstant or isinstance(value, torch.Tensor):
            raise NotConstant(f"{name} is not known while tracing") from None
        return _real(value)


def _real(value: Any) -> Any:
    return getattr(value, "real_obj", value)


def intercept(
    fn: Callable[..., Any],
    concerns: Callable[[Translator], bool],
    answer: Answer,
) -> None:
    """Lets `answer(call, original)` take traced calls of `fn`; `original()` is what the call would be without us, and
    stays so wherever `concerns(tx)` is false."""
    from torch._dynamo.variables.builder import VariableBuilder

    dispatch = getattr(VariableBuilder, "_id_dispatch", None)
    if dispatch is None or not hasattr(VariableBuilder, "_wrap"):
        raise UnsupportedTorch("torch._dynamo.variables.builder.VariableBuilder._id_dispatch")
    table = VariableBuilder._id_dispatch()

    def build(builder: Any, value: Any) -> Variable:
        table.pop(id(fn))  # let torch build what it would have built
        try:
            variable = builder._wrap(value)
        finally:
            table[id(fn)] = build
        if concerns(builder.tx):
            variable.__class__ = _answering(type(variable), fn, answer)  # type: ignore[arg-type]
        return variable

    table[id(fn)] = build


def trace_p2p_ops(concerns: Callable[[Translator], bool]) -> None:
    """Lets `dist.P2POp(...)` be traced where `concerns(tx)` holds; torch asks for a flag of Dynamo's."""
    from torch._dynamo import config

    if not hasattr(config, "enable_p2p_compilation"):
        return
    import torch.distributed as dist

    def construct(call: Call, original: Callable[[], Variable]) -> Variable:
        with config.patch(enable_p2p_compilation=True):
            return original()

    intercept(dist.P2POp, concerns, construct)


def trace_timedelta(concerns: Callable[[Translator], bool]) -> None:
    """Lets `timedelta(...)` of constants be traced where `concerns(tx)` holds: the timeout of a `wait()`. What is done
    with it beyond handing it on stays torch's affair."""

    def construct(call: Call, original: Callable[[], Variable]) -> Variable:
        try:
            args = [constant(arg, "timedelta") for arg in call.arguments.get("args", ())]
            kwargs = {name: constant(arg, name) for name, arg in call.arguments.get("kwargs", {}).items()}
            return _constant_object()(timedelta(*args, **kwargs))
        except (NotConstant, TypeError, OverflowError):
            return original()

    intercept(timedelta, concerns, construct)


@functools.cache
def _constant_object() -> Any:
    """The variable class of an immutable object that was made while tracing, and may outlive the graph."""
    from torch._dynamo.variables import UserDefinedObjectVariable

    def reconstruct(self: Any, codegen: Any) -> None:
        name = codegen.tx.output.install_global_by_id("_tp_compile_pass_constant", self.value)
        codegen.append_output(codegen.create_load_global(name, add=True))

    cls: Any = UserDefinedObjectVariable
    return type(cls)("ConstantObject", (cls,), {"reconstruct": reconstruct, "__module__": cls.__module__})


@functools.cache
def _answering(cls: Any, fn: Callable[..., Any], answer: Answer) -> Any:
    """A subclass of the variable's class whose calls `answer` may take. A class, because variables get cloned."""

    def call_function(self: Any, tx: Translator, args: Any, kwargs: Any) -> Variable:
        original = functools.partial(cls.call_function, self, tx, args, kwargs)  # type: ignore[attr-defined]
        try:
            call = Call(tx, fn, args, kwargs)
        except TypeError:  # a call that Python itself refuses
            return original()
        return answer(call, original)

    return type(cls)(cls.__name__, (cls,), {"call_function": call_function, "__module__": cls.__module__})


def inline(tx: Translator, fn: Callable[..., Any], *args: Any) -> Variable:
    """Traces `fn(*args)`, a function of ours, at this point."""
    from torch._dynamo.variables import UserFunctionVariable

    return UserFunctionVariable(fn).call_function(  # type: ignore[arg-type]
        tx, [variable(tx, arg) for arg in args], {}
    )


def variable(tx: Translator, value: Any) -> Variable:
    """`value` as a variable of Dynamo's, unless it is one."""
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.builder import SourcelessBuilder
    from torch._dynamo.variables.lists import ListVariable

    if isinstance(value, VariableTracker):
        return value
    if isinstance(value, list):
        return ListVariable([variable(tx, item) for item in value], **_new_mutable())
    return SourcelessBuilder.create(tx, value)


def break_graph(tx: Translator) -> Variable:
    """Ends the graph before the call that is being traced; with fullgraph=True that is torch's error."""
    return inline(tx, _break)


def _break() -> None:
    torch._dynamo.graph_break()


def _new_mutable() -> dict[str, Any]:
    """What marks a list as made while tracing (called mutable_local before torch 2.6)."""
    from torch._dynamo.variables import base

    if hasattr(base, "ValueMutationNew"):
        return {"mutation_type": base.ValueMutationNew()}
    return {"mutable_local": base.MutableLocal()}  # type: ignore[attr-defined]


def items(value: Variable) -> list[Variable] | None:
    """The elements of a list or tuple variable; None where it is something else."""
    value = realized(value)
    found = getattr(value, "items", None)
    return list(found) if isinstance(found, (list, tuple)) else None


def tensor_dims(value: Variable) -> int | None:
    """The number of dimensions of a tensor variable; None where it is something else."""
    from torch._dynamo.variables import TensorVariable

    value = realized(value)
    return value.ndim if isinstance(value, TensorVariable) else None


def is_symbolic(value: Variable) -> bool:
    """Whether the variable is a size, or a number or truth computed from one, that has no fixed value."""
    from torch._dynamo.variables import SymNodeVariable

    return isinstance(realized(value), SymNodeVariable)


def realized(value: Variable) -> Variable:
    """The variable behind a lazy one."""
    return value.realize() if hasattr(value, "realize") else value


def value_type(value: Variable) -> type | None:
    """The Python type that a variable stands for; None where Dynamo does not know."""
    try:
        return value.python_type()  # type: ignore[no-any-return]
    except NotImplementedError:
        return None


# ------------------------------------------------------------------------------------------------------ who is tracing
def traces_for(tx: Translator, backend: Callable[..., Any]) -> bool:
    """Whether the graph being traced goes to `backend`: named, or as a function, or wrapped by torch."""
    current, seen = tx.output.compiler_fn, 0
    while current is not None and seen < 20:
        if current is backend or getattr(current, "compiler_fn", None) is backend:
            return True
        current, seen = _wrapped(current), seen + 1
    return False


def _wrapped(compiler: Any) -> Any:
    for name in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable", "__wrapped__", "func"):
        inner = getattr(compiler, name, None)
        if inner is not None and inner is not compiler:
            return inner
    for name in ("compiler_fn", "backend", "backend_compile_fn", "_compiler_fn"):
        inner = getattr(compiler, name, None)
        if callable(inner) and inner is not compiler:
            return inner
    return None


def user_line(tx: Translator) -> tuple[str, int, str]:
    """(file, line, function) of the user's code being traced: the innermost frame outside of torch and of us."""
    while is_library_file(tx.f_code.co_filename) and getattr(tx, "parent", None) is not None:
        tx = tx.parent
    line = getattr(tx.current_instruction.positions, "lineno", None) or getattr(tx, "lineno", 0)
    return tx.f_code.co_filename, int(line or 0), tx.f_code.co_name


# ---------------------------------------------------------------------------------------------- handles and isinstance
def answer_isinstance(cls: type, base: type) -> None:
    """Makes traced `isinstance(x, base)` true where x is of the class `cls`, which cannot be a subclass of `base`."""
    from torch._dynamo.variables.builtin import BuiltinVariable

    original = BuiltinVariable.call_isinstance

    @functools.wraps(original)
    def call_isinstance(self: Any, tx: Translator, arg: Variable, types: Variable) -> Variable:
        if value_type(arg) is cls:
            asked = types.as_python_constant()
            if base in (asked if isinstance(asked, tuple) else (asked,)):
                return variable(tx, True)
        return original(self, tx, arg, types)

    BuiltinVariable.call_isinstance = call_isinstance  # type: ignore[assignment, method-assign]


def at_method_call(cls: type, concerns: Callable[[Translator], bool], hook: Callable[[Translator, str], None]) -> None:
    """Calls `hook(tx, method)` before a method of an object of the C++ class `cls` is traced, if the object was made
    outside and `concerns(tx)` holds."""
    from torch._dynamo.variables.builder import VariableBuilder

    original = VariableBuilder._wrap
    # Before torch 2.9 Dynamo looks the method up first, and then calls what it found in the class.
    methods = {id(value): name for name, value in vars(cls).items() if type(value).__name__ == "instancemethod"}

    @functools.wraps(original)
    def wrap(self: Any, value: Any) -> Variable:
        variable = original(self, value)
        method = methods.get(id(value), "")
        if (method or issubclass(type(value), cls)) and concerns(self.tx):
            variable.__class__ = _announcing(type(variable), hook, method)  # type: ignore[arg-type]
        return variable

    VariableBuilder._wrap = wrap  # type: ignore[method-assign]


@functools.cache
def _announcing(cls: Any, hook: Callable[[Translator, str], None], method: str) -> Any:
    """A subclass of the variable's class that tells `hook` of each method that is called; of `method` where the
    variable is that method itself."""

    def call_method(self: Any, tx: Translator, name: str, *args: Any, **kwargs: Any) -> Variable:
        hook(tx, method or name)
        return cls.call_method(self, tx, name, *args, **kwargs)

    return type(cls)(cls.__name__, (cls,), {"call_method": call_method, "__module__": cls.__module__})


def at_region_end(hook: Callable[[Translator, Callable[[], list[Variable]]], None]) -> None:
    """Calls `hook(tx, survivors)` when tracing of a graph ends, before the graph is compiled. It must call `survivors`
    once, which drops the objects that the traced code made and nothing refers to any more, and returns those left."""
    from torch._dynamo.side_effects import SideEffects

    original = SideEffects.prune_dead_object_new

    @functools.wraps(original)
    def prune(self: Any, tx: Translator) -> None:
        def survivors() -> list[Variable]:
            original(self, tx)
            return list(self.id_to_variable.values())

        tx.output.should_exit, before = False, tx.output.should_exit  # else nothing more is traced
        try:
            hook(tx, survivors)
        finally:
            tx.output.should_exit = before

    SideEffects.prune_dead_object_new = prune  # type: ignore[method-assign]


def pending_attribute(tx: Translator, value: Variable, name: str) -> Variable | None:
    """What traced code has stored in the attribute `name` of an object that it made."""
    effects = tx.output.side_effects
    return effects.load_attr(value, name) if effects.has_pending_mutation_of_attr(value, name) else None


def notes(tx: Translator, name: str) -> list[Any]:
    """A list of ours that lives as long as the graph being traced."""
    found: list[Any] = tx.output.__dict__.setdefault(f"_tp_compile_pass_{name}", [])
    return found


def current_tracer(tx: Translator) -> Any:
    """What records nodes now: the root graph, or the body of a higher-order op."""
    return tx.output.current_tracer
