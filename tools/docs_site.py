"""Build the documentation site: ``python -m tools.docs_site``, called by ``make docs``.

Copies the committed pages to build/docs, adds the generated reference, and builds build/site from it. The build fails
for a link or an anchor without a target. The navigation is the list of links in docs/README.md.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ddp_doctor.checks import every_check
from tools import man_page, reference

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
#: Pages outside of docs/.
_OF_THE_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
#: Parts of a page whose codes are not linked: code, links, headings, comments and tags.
_NOT_LINKED = re.compile(r"(^ *```.*?^ *```$|`[^`\n]+`|!?\[[^\]]*\]\([^)]*\)|^#.*?$|<[^>]*>)", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"\bDD[JLT]?\d{3}\b")
_REFERENCE = "## Reference\n"


def stage(folder: Path) -> None:
    """Write the pages of the site into an empty directory, with the layout of the repository."""
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("mkdocs.yml"))
    for name in _OF_THE_ROOT:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder)
    for name, text in reference.pages().items():
        path = folder / "docs/reference" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    contents = folder / "docs/README.md"
    generated = "".join(f"* [{title}](reference/{name}): {gist}\n" for name, title, gist in reference.CONTENTS)
    contents.write_text(contents.read_text("utf-8").replace(_REFERENCE, f"{_REFERENCE}\n{generated}", 1), "utf-8")
    for path in folder.rglob("*.md"):
        path.write_text(
            with_links(path.read_text("utf-8"), os.path.relpath(folder / "docs/reference", path.parent)), "utf-8"
        )


def with_links(text: str, to_reference: str) -> str:
    """Link the codes of rules in a page."""

    def linked(found: re.Match[str]) -> str:
        page = reference.PAGES.get(found[0])
        return f"[{found[0]}]({to_reference}/{page})" if page else found[0]

    pieces = _NOT_LINKED.split(text)
    pieces[::2] = [_CODE.sub(linked, piece) for piece in pieces[::2]]
    return "".join(pieces)


def navigation(contents: str) -> list[dict[str, object]]:
    """Return the navigation: the sections of docs/README.md with their links."""
    sections = re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", contents, re.MULTILINE)
    found: list[dict[str, object]] = [{"Overview": "README.md"}, {"Contents": "docs/README.md"}]
    for title, text in sections:
        links: list[dict[str, object]] = [
            {name: os.path.normpath(f"docs/{path}")}
            for name, path in re.findall(r"^\* \[([^\]]+)\]\(([^)#]+\.md)\)", text, re.MULTILINE)
        ]
        if f"## {title}\n" == _REFERENCE:
            links.append({"Each check": [{check: f"docs/reference/checks/{check}.md"} for check in _checks()]})
        found.append({title: links})
    return found


def _checks() -> list[str]:
    return sorted(check.id for check in every_check())


def main() -> None:
    """Build the site and the manual page. Exits with the code of the site generator."""
    staged = BUILD / "docs"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    stage(staged)
    (BUILD / "ddp-doctor.1").write_text(man_page.man_page(), encoding="utf-8")
    settings = (ROOT / "docs/mkdocs.yml").read_text("utf-8")
    listed = json.dumps(navigation((staged / "docs/README.md").read_text("utf-8")), indent=1)
    (BUILD / "mkdocs.yml").write_text(f"{settings}nav: {listed}\n", encoding="utf-8")  # JSON is YAML
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(BUILD / "mkdocs.yml"))
    sys.exit(subprocess.run(command, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode)


if __name__ == "__main__":
    main()
