"""Brings the repository's address, [project.urls] of pyproject.toml, to README and notebooks.

Run it when the address changes: `python launch/address.py`. While there is none, badges are left
out and the notebooks install from a checkout or a wheel file.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


ROOT = Path(__file__).parent.parent
HOSTED = "They run in Jupyter and on Colab."
NOT_YET = (
    "They run in Jupyter. On Colab upload one with a wheel (`pip wheel --no-deps .`) beside it, "
    "until `[project.urls]`\nin pyproject.toml has the repository's address and "
    "`python launch/address.py` has put badges here."
)
_ROW = re.compile(r"^\| (\[[^]]+\]\((launch/colab/\w+\.ipynb)\))[^|]*\|", re.M)
_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def written(address: str) -> dict[Path, str]:
    """The files with this address in them ("": there is none)."""
    files = {
        path: path.read_text("utf-8") for path in sorted((ROOT / "launch/colab").glob("*.ipynb"))
    }
    for path, text in files.items():
        files[path] = re.sub(r'ADDRESS = \\"[^"]*\\"', rf'ADDRESS = \\"{address}\\"', text)
    place = address.replace("https://github.com/", "https://colab.research.google.com/github/")

    def row(found: re.Match[str]) -> str:
        badge = f" [![Open In Colab]({_BADGE})]({place}/blob/main/{found[2]})" if address else ""
        return f"| {found[1]}{badge} |"

    readme = (ROOT / "README.md").read_text("utf-8")
    readme = readme.replace(HOSTED, NOT_YET).replace(NOT_YET, HOSTED if address else NOT_YET)
    files[ROOT / "README.md"] = _ROW.sub(row, readme)
    return files


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for path, text in written(project.get("urls", {}).get("Repository", "")).items():
        path.write_text(text, "utf-8")
