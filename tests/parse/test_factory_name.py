"""The name that --model takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.options import require_factory


@pytest.mark.parametrize("name", ["net:make", "train.models:make_resnet", "train.models:Nets.small", "_a:_b"])
def test_a_module_and_a_callable_are_taken(name):
    require_factory(name, ("user_model",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("net", "there is no colon in 'net'"),
        ("net:", "'' is no name in Python"),
        (":make", "'' is no name in Python"),
        ("net:make()", "'make()' is no name"),
        ("my-net:make", "'my-net' is no name"),
        ("net:class", "'class' is no name"),
        ("net.py:make", "for this file: --model net:make"),
        ("./train/net.py", "for this file: --model train.net:make"),
        ("/opt/my net.py:make", "a module's name, not its file"),
    ],
)
def test_what_is_no_name_is_refused_with_a_sentence(name, words):
    with pytest.raises(ValueError, match="--model takes MODULE:FACTORY") as refused:
        require_factory(name)
    assert words in str(refused.value)


def test_the_command_fit_is_named_where_it_was_typed():
    with pytest.raises(ValueError, match=r"fit takes MODULE:FACTORY.*; for this file: fit net:make"):
        require_factory("net.py:make", option="fit")


def test_the_check_without_a_model_says_what_is_missing():
    require_factory("", ())
    with pytest.raises(ValueError, match="--only user_model needs a model of yours"):
        require_factory("", ("user_model",))


@given(st.text(max_size=200))
def test_any_text_is_taken_or_refused_in_a_short_sentence(text):
    words = ""
    try:
        require_factory(text)
    except ValueError as refused:
        words = str(refused)
    assert len(words) < 600
