"""A headless Chromium that a test drives over a pipe, with Chromium's DevTools protocol.

https://chromedevtools.github.io/devtools-protocol/
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-quic",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip


#: Events that a page causes on the console: its messages, its errors, and what the browser refuses it.
_ON_CONSOLE = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


class Tab:
    """A tab of the browser. It keeps the addresses that its pages requested, and their messages on the console."""

    def __init__(self, to: BinaryIO, answers: BinaryIO) -> None:
        self._to, self._answers, self._numbers = to, answers, count(1)
        self._session: str | None = None
        self.requested: list[str] = []
        self.console: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int, scheme: str = "light") -> None:
        """Show a page in a window of this width, for a user who prefers this color scheme."""
        preferred = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[preferred])
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self._call("Page.navigate", url=url)
        self.evaluate("document.readyState == 'complete' || new Promise(loaded => addEventListener('load', loaded))")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        done = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        number = next(self._numbers)
        call = {"id": number, "method": method, "params": params}
        self._to.write(json.dumps(call | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._to.flush()
        for answer in self._read():
            if answer.get("method") == "Network.requestWillBeSent":
                self.requested.append(answer["params"]["request"]["url"])
            if answer.get("method") in _ON_CONSOLE:
                self.console.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
        raise AssertionError(f"Chromium exited before it answered {method}")

    def _read(self) -> Iterator[dict[str, Any]]:
        text = bytearray()
        while byte := self._answers.read(1):
            if byte == b"\0":
                yield json.loads(text)
                text.clear()
            else:
                text += byte


@contextmanager
def tab(chromium: str, profile: Path) -> Iterator[Tab]:
    """Start the browser, which reads from file 3 and writes to file 4, and end it."""
    (read_to, write_to), (read_answers, write_answers) = os.pipe(), os.pipe()
    words = shlex.join([chromium, *_OPTIONS, f"--user-data-dir={profile}"])
    shell = f"exec {words} 3<&{read_to} 4>&{write_answers}"
    process = subprocess.Popen(("bash", "-c", shell), pass_fds=(read_to, write_answers), stderr=subprocess.DEVNULL)
    os.close(read_to)
    os.close(write_answers)
    try:
        with os.fdopen(write_to, "wb") as to, os.fdopen(read_answers, "rb") as answers:
            yield Tab(to, answers)
    finally:
        process.terminate()
        process.wait()
