"""The site that `make docs` builds, opened from its files in a browser."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.lab.browser import Tab, tab
from tests.waiting import wait_until

# serial: both tests build into build/site, as `make docs` does, unless it is up to date
pytestmark = [pytest.mark.lab, pytest.mark.serial]

ROOT = Path(__file__).parents[2]
PAGES = (
    "index.html",
    "docs/index.html",
    "docs/how-to/slurm.html",
    "docs/reference/cli.html",
    "docs/reference/rules.html",
    "docs/reference/checks/gpus.html",
)


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run(("make", "docs"), cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build/site"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Tab]:
    if not (chromium := shutil.which("chromium")):
        pytest.skip("needs chromium")
    with tab(chromium, tmp_path) as opened:
        yield opened


def test_every_address_in_a_page_of_the_site_has_a_target(site: Path):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    names = {path: {*re.findall(r'\bid="?([^">\s]+)', text)} for path, text in pages.items()}
    dead, loaded = set(), set()
    for path, text in pages.items():
        for kind, address in re.findall(r'\s(href|src|srcset)="([^"]*)"', text):
            parts = urlsplit(unescape(address))
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if parts.scheme or parts.netloc:
                loaded |= {address} if kind != "href" else set()
            elif not target.exists() or (parts.fragment and unquote(parts.fragment) not in names.get(target, {""})):
                dead.add(f"{path.relative_to(site)}: {address}")

    assert (sorted(dead), sorted(loaded)) == ([], [])
    assert len(pages) > 100


def test_pages_fit_a_phone_and_the_search_works_offline(site: Path, browser: Tab):
    for width in (1280, 390):
        for page in PAGES:
            browser.open((site / page).as_uri(), width)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, page

    browser.open(f"{(site / 'index.html').as_uri()}?q=leftover-launch-variables", 1280)
    results = "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href)"
    wait_until(lambda: browser.evaluate(results))
    assert [link for link in browser.evaluate(results) if "/docs/reference/checks/env_vars.html" in link] != []
    assert [url for url in browser.requested if urlsplit(url).scheme not in ("file", "data", "about", "blob")] == []
