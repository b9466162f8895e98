"""mkdocs' hook: pages and pictures that lie outside of docs/, and links that fit a site.

Links to other files of the repository are shown as their paths.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "index.md": "README.md",
    "gin-files.md": "gin_configs/README.md",
    "changes.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_FENCE = re.compile(r"^```(\w+)[ ]+(\S[^\n]*)$", re.M)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages, and the pictures of the package that pages show."""
    from mkdocs.structure.files import File

    texts = {name: (ROOT / path).read_text(encoding="utf-8") for name, path in PAGES.items()}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    shown = [*texts.values()]
    shown += [path.read_text(encoding="utf-8") for path in Path(config.docs_dir).rglob("*.md")]
    pictures = {f for text in shown for f in re.findall(r"(qac_jax/assets/[\w/.-]+\.\w+)\)", text)}
    for picture in sorted(pictures):
        made = File.generated(config, _picture(picture), abs_src_path=str(ROOT / picture))
        files.append(made)
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Fences as mkdocs reads them, and links that lead somewhere."""
    here = PAGES.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, hash_mark, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        known = _page(place)
        if known is None:
            return found[0] if mark else f"{label} (`{place}`)"
        up = posixpath.relpath(known, posixpath.dirname(page.file.src_uri) or ".")
        return f"{mark}[{label}]({up}{hash_mark}{anchor})"

    return _FENCE.sub(_fence, _LINK.sub(link, text))


def _fence(found: re.Match[str]) -> str:
    language, rest = found.groups()
    return f'```{language} title="{rest}"' if "." in rest else f"```{language}"


def _page(place: str) -> str | None:
    """The page or picture of the site that a file of the repository is."""
    for page, path in PAGES.items():
        if place == path or place and place == posixpath.dirname(path):
            return page
    if place.startswith("qac_jax/assets/") and (ROOT / place).suffix in (".png", ".svg"):
        return _picture(place)
    return place.removeprefix("docs/") if place.startswith("docs/") else None


def _picture(place: str) -> str:
    return f"pictures/{place.removeprefix('qac_jax/assets/').replace('/', '-')}"
