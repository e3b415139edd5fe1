"""The name in the option --model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.options import require_factory


@pytest.mark.parametrize("name", ["net:make", "train.models:make_resnet", "train.models:Nets.small", "_a:_b"])
def test_module_and_callable_are_accepted(name):
    require_factory(name, ("user_model",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("net", "expected MODULE:FACTORY, for example train.models:make"),
        ("net:", "'' is not a Python name"),
        (":make", "'' is not a Python name"),
        ("net:make()", "'make()' is not a Python name"),
        ("my-net:make", "'my-net' is not a Python name"),
        ("net:class", "'class' is not a Python name"),
        ("net.py:make", "for this file, use --model net:make"),
        ("./train/net.py", "for this file, use --model train.net:make"),
        ("/opt/my net.py:make", "expected a module name instead of a file"),
    ],
)
def test_invalid_name_is_refused_with_a_sentence(name, words):
    with pytest.raises(ValueError, match=r"^invalid --model") as refused:
        require_factory(name)
    assert words in str(refused.value)


def test_command_fit_is_named_in_its_own_errors():
    with pytest.raises(ValueError, match=r"expected a module name instead of a file; for this file, use fit net:make"):
        require_factory("net.py:make", option="fit")


def test_check_without_a_model_names_the_missing_option():
    require_factory("", ())
    with pytest.raises(ValueError, match="--only user_model requires a model"):
        require_factory("", ("user_model",))


@given(st.text(max_size=200))
def test_any_text_is_accepted_or_refused_in_a_short_sentence(text):
    words = ""
    try:
        require_factory(text)
    except ValueError as refused:
        words = str(refused)
    assert len(words) < 600
