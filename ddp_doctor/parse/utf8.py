"""Text that JSON and every stream take.

Python reads bytes that are no UTF-8, in variables and names of files, as half characters: ``b"eth\\xff"`` is
``"eth\\udcff"``, and a script may write ``"\\ud800"``. No encoder takes them.
"""


def as_utf8(text: str) -> str:
    r"""``text`` with half characters written out: ``eth\udcff`` as nine characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
