"""An injected fault, and how it is removed."""

from collections.abc import Callable


class Planted:
    """A fault that stands until it is undone."""

    def __init__(self, *undo: Callable[[], object]) -> None:
        self._undo = list(undo)

    def __enter__(self) -> "Planted":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Take the fault away. May be called twice."""
        while self._undo:
            self._undo.pop()()
