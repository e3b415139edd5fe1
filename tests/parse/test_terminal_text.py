import pytest

from ddp_doctor.parse.text import plain_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\x1b[4mGPU0\tGPU1\x1b[0m", ["GPU0\tGPU1"]),
        ("\ufffd[4mGPU0\ufffd[0m", ["GPU0"]),
        ("\ufeffGPU0", ["GPU0"]),
        ("a\r\nb\rc\nd\r\r\n", ["a", "b", "c", "d", ""]),
        ("\x1b]0;root@node: ~\x07# ls\x1b[K", ["# ls"]),
        ("mm\x08 x", ["m x"]),
        ("a\xa0b", ["a b"]),
        ("<pre>&nbsp;GPU0<br>\n", [" GPU0", ""]),
        ("a < b and b > c", ["a < b and b > c"]),
    ],
)
def test_decoration_is_removed_and_lines_stay(text: str, lines: list[str]):
    assert plain_lines(text) == lines
