"""mkdocs' hook: pages made of the README and of the package, and links that fit a site.

The README is the one source of what it says: its sections become pages here. Formats are listed
from the first lines of their files. Links to files outside docs/ are shown as their paths.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any


ROOT = Path(__file__).resolve().parent.parent
# Page -> the headings of the README that make it up; "" is what stands before the first.
PAGES = {
    "index.md": ("", "The demo", "The steps", "Limits"),
    "own-documents.md": ("Your own documents",),
    "steps.md": ("Step by step",),
    "notebooks.md": ("Notebooks",),
    "recipes.md": ("The papers' recipes",),
    "settings.md": ("Settings", "Names"),
    "hosts.md": ("GPUs, TPUs, several hosts",),
}
WHOLE = {
    "gin-files.md": "gin_configs/README.md",
    "changes.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
FORMATS = {
    "documents": "Documents: `--documents`, `--format`",
    "pages": "Files in a folder of documents (`--format folder`)",
    "queries": "Queries: `--queries`",
    "judgements": "Judgements: `--qrels`",
    "training": "Training lines: `--training`",
}
_FENCE = re.compile(r"^```(\w+)[ ]+(\S[^\n]*)$", re.M)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made, and the pictures that pages show."""
    from mkdocs.structure.files import File

    made = {name: _from_readme(headings) for name, headings in PAGES.items()}
    made |= {name: (ROOT / path).read_text(encoding="utf-8") for name, path in WHOLE.items()}
    made["formats.md"] = _formats()
    for name, text in made.items():
        if files.get_file_from_path(name) is None:  # a page of docs/ comes first
            files.append(File.generated(config, name, content=text))
    for picture in _pictures(config):
        target = f"pictures/{'-'.join(picture.relative_to(ROOT / 'qac_jax/assets').parts)}"
        files.append(File.generated(config, target, abs_src_path=str(picture)))
    return files


def on_page_markdown(text: str, page: Any, config: Any, files: Any) -> str:
    """Fences as mkdocs reads them, and links that lead somewhere."""
    here = _origin(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path, hash_mark, anchor = target.partition("#")
        place = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        known = _page(place, anchor)
        if known is None:
            return found[0] if mark else f"{label} (`{place}`)"
        up = posixpath.relpath(known, posixpath.dirname(page.file.src_uri) or ".")
        return f"{mark}[{label}]({up}{hash_mark}{anchor})"

    return _FENCE.sub(_fence, _LINK.sub(link, text))


def _fence(found: re.Match[str]) -> str:
    language, rest = found.groups()
    return f'```{language} title="{rest}"' if "." in rest else f"```{language}"


def _origin(page: str) -> str:
    """The file in the repository that a page was written in."""
    if page in PAGES:
        return "README.md"
    return WHOLE.get(page, f"docs/{page}")


def _page(place: str, anchor: str) -> str | None:
    """The page or picture of the site that a file of the repository is."""
    if place == "README.md":
        named = (page for page, headings in PAGES.items() if anchor in map(_anchor, headings))
        return next(named, "index.md") if anchor else "index.md"
    for page, path in WHOLE.items():
        if place in (path, posixpath.dirname(path)):
            return page
    if place.startswith("qac_jax/assets/") and (ROOT / place).suffix in (".png", ".svg"):
        return f"pictures/{place.removeprefix('qac_jax/assets/').replace('/', '-')}"
    return place.removeprefix("docs/") if place.startswith("docs/") else None


def _anchor(heading: str) -> str:
    """A heading's name in links."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _sections() -> dict[str, str]:
    """Heading -> text of the README's sections, the beginning under ""."""
    parts = re.split(r"^## (.+)$", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def _from_readme(headings: tuple[str, ...]) -> str:
    sections = _sections()
    first, *others = headings
    begin = sections[""] if first == "" else f"# {first}\n{sections[first]}"
    return "\n".join([begin, *(f"## {heading}\n{sections[heading]}" for heading in others)])


def _formats() -> str:
    """Every format with the first sentence of its file."""
    lines = ["# Formats", "", "Formats are recognised where they can be; each is one file, and"]
    lines += ["[a new one](extending.md#c-a-document-format) is found by being there. Files may be"]
    lines += [
        "compressed (gzip, bzip2, xz, zstandard). `--options` sets what a format leaves open."
    ]
    for folder, title in FORMATS.items():
        lines += ["", f"## {title}", "", "| name | what |", "|---|---|"]
        for path in sorted((ROOT / "qac_jax/formats/readers" / folder).glob("[a-z]*.py")):
            begin = re.match(r'"""(.*?)(?:\n\n|""")', path.read_text(encoding="utf-8"), re.S)
            assert begin, f"{path} begins with no text"
            what = " ".join(begin[1].split()).replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{path.stem}` | {what} |")
    return "\n".join(lines) + "\n"


def _pictures(config: Any) -> list[Path]:
    """The pictures of the package that pages show."""
    texts = [(ROOT / "README.md").read_text(encoding="utf-8")]
    texts += [p.read_text(encoding="utf-8") for p in Path(config.docs_dir).rglob("*.md")]
    named = {
        match[1]
        for text in texts
        for match in re.finditer(r"(qac_jax/assets/[\w/.-]+\.\w+)\)", text)
    }
    return sorted(ROOT / name for name in named)
