"""Pages in a real browser: nothing is loaded or run, and axe finds no fault that keeps a person from reading them."""

import json
import re
import shutil
import subprocess
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.html import page
from tests.recorded import load
from tests.render.test_html import EVIL, hang_of, named_page

pytestmark = pytest.mark.lab

#: Runs axe when the page is there, and leaves what it found in the page.
RUN_AXE = """<script>{}</script><script>axe.run().then(found => {{
  const left = document.createElement("pre");
  left.id = "axe";
  left.textContent = JSON.stringify(found.violations);
  document.body.append(left);
}})</script></body>"""
LIGHT, DARK = "1", "0"  # of Blink's setting preferredColorScheme


def opened(file: Path, text: str, *, width: int, scheme: str) -> tuple[str, list[str]]:
    """What a browser makes of a page, and the lines that it writes on the console."""
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs chromium")
    file.write_text(text, encoding="utf-8")
    command = [
        *(
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ),
        *(f"--user-data-dir={file.parent}/profile", f"--window-size={width},900", "--enable-logging=stderr"),
        *(f"--blink-settings=preferredColorScheme={scheme}", "--virtual-time-budget=20000", "--dump-dom"),
    ]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=200, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def faults(tmp_path: Path, text: str, *, width: int, scheme: str) -> list[dict[str, Any]]:
    """What axe finds in a page, for which the page's own policy has to go."""
    axe = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
    without_policy = re.sub("<meta http-equiv[^>]*>", "", text)
    seen, _ = opened(
        tmp_path / "page.html",
        without_policy.replace("</body>", RUN_AXE.format(axe)),
        width=width,
        scheme=scheme,
    )
    (found,) = re.findall('<pre id="axe">(.*?)</pre>', seen, re.DOTALL)
    return [
        {"id": one["id"], "in": [node["html"] for node in one["nodes"]][:3]}
        for one in json.loads(unescape(found))
    ]


def test_a_host_that_is_called_script_is_text_and_nothing_is_loaded(tmp_path: Path):
    seen, console = opened(tmp_path / "page.html", named_page(EVIL), width=1280, scheme=LIGHT)
    assert console == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in seen
    assert not re.search("<(script|img|link|iframe)", seen)


@pytest.mark.parametrize(
    ("shown", "width", "scheme"),
    [
        ("hang", 390, DARK),
        ("connectivity/node-at-100-mbit", 1280, DARK),
        ("env_vars/of-a-job-script", 390, LIGHT),
        ("512 ranks", 1280, LIGHT),
    ],
)
def test_axe_finds_no_fault(tmp_path: Path, shown: str, width: int, scheme: str):
    recordings: dict[str, Recording] = {"hang": hang_of(1, guilty=5), "512 ranks": hang_of(64, guilty=77)}
    recording = recordings.get(shown) or load(shown)
    text = page.render(app.judge(recording).report, recording)
    assert faults(tmp_path, text, width=width, scheme=scheme) == []
