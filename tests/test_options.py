"""Options: where they come from, and what a wrong one says."""

import pytest
import torch

from tp_compile_pass.options import TPOptionError, TPOptions


def test_defaults_and_inductors_own_options_pass_by():
    tp, rest = TPOptions.split({"max_autotune": True, "triton.cudagraphs": False})
    assert tp == TPOptions()
    assert rest == {"max_autotune": True, "triton.cudagraphs": False}
    assert TPOptions.split(None) == (TPOptions(), {})


@pytest.mark.parametrize(("field", "value", "text"), [("inner", "aot_eager", "aot_eager"), ("strict", True, "1")])
def test_each_option_comes_from_options_or_from_the_environment(monkeypatch, field, value, text):
    assert getattr(TPOptions.split({f"tp.{field}": value})[0], field) == value
    monkeypatch.setenv(f"TP_COMPILE_PASS_{field.upper()}", text)
    assert getattr(TPOptions.split(None)[0], field) == value


def test_options_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("TP_COMPILE_PASS_INNER", "eager")
    assert TPOptions.split({"tp.inner": "aot_eager"})[0].inner == "aot_eager"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp.iner": "eager"}, r"option 'tp.iner' is unknown; did you mean tp.inner\?"),
        ({"tp.zzz": 1}, r"option 'tp.zzz' is unknown \(known: tp.inner, tp.strict"),
        ({"tp.inner": "inductr"}, r"option 'tp.inner': 'inductr': Input should be 'inductor', 'aot_eager' or 'eager'"),
        ({"tp.strict": "yes"}, r"option 'tp.strict': 'yes': Input should be a valid boolean"),
        ({"tp.strict": 1}, r"option 'tp.strict': 1: Input should be a valid boolean"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_known(options, message):
    with pytest.raises(TPOptionError, match=message):
        TPOptions.split(options)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        (
            "TP_COMPILE_PASS_INER",
            "eager",
            r"environment variable TP_COMPILE_PASS_INER is unknown; did you mean tp.inner",
        ),
        ("TP_COMPILE_PASS_STRICT", "maybe", r"environment variable TP_COMPILE_PASS_STRICT='maybe': Input should be"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch, variable, text, message):
    monkeypatch.setenv(variable, text)
    with pytest.raises(TPOptionError, match=message):
        TPOptions.split(None)


@pytest.mark.matrix
def test_the_user_sees_the_message():
    with pytest.raises(Exception, match=r"did you mean tp\.inner"):
        torch.compile(torch.sin, backend="tp_inductor", options={"tp.iner": "eager"})(torch.ones(2))
