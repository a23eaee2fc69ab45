"""Hooks of ``make docs``: what the site has beside the pages in ``docs``.

- The home page is ``README.md``, and ``CHANGELOG.md`` and ``CONTRIBUTING.md`` are pages, too.
- The decisions have a list.
- Each file of the repository that a page links to, such as a module in the tour, is a page under ``source/``. So the
  links work in the site as they do in a checkout.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
HOME = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(\]\()([^()#\s]+)((?:#[^()\s]*)?\))")
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".toml": "toml", ".json": "json", ".java": "java"}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in ``docs``."""
    pages = {target: (ROOT / name).read_text("utf-8") for name, target in HOME.items()}
    pages["decisions/index.md"] = list_of_decisions()
    for target, text in pages.items():
        files.append(File.generated(config, target, content=text))
    of_docs = {file.src_uri: Path(file.abs_src_path).read_text("utf-8") for file in files if is_page(file)}
    for page, text in {**of_docs, **pages}.items():
        for _, link, _ in LINK.findall(text):
            name = outside(page, link)
            if name is not None and files.get_file_from_path(source_page(name)) is None:
                files.append(File.generated(config, source_page(name), content=source_text(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Have links lead to the pages that ``on_files`` has added."""
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        target = site_path(here, link)
        return (
            found[0] if target is None else before + posixpath.relpath(target, posixpath.dirname(here) or ".") + after
        )

    return LINK.sub(moved, markdown)


def is_page(file: File) -> bool:
    return file.src_uri.endswith(".md") and file.abs_src_path is not None


def site_path(page: str, link: str) -> str | None:
    """Where a link of a page leads in the site; ``None``: where it leads without help."""
    name = repository_path(page, link)
    if name is None:
        return None
    if name in HOME:
        return HOME[name]
    if name == "docs/decisions":
        return "decisions/index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return source_page(name)


def outside(page: str, link: str) -> str | None:
    """The path in the repository that a link leads to, if that is a page under ``source/``."""
    name = repository_path(page, link)
    return None if name is None or name in HOME or name.startswith("docs/") else name


def repository_path(page: str, link: str) -> str | None:
    """What a link of a page names in the repository; ``None``: nothing, as an address in the web does."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    at_root = {target: name for name, target in HOME.items()}
    folder = "" if page in at_root else posixpath.dirname(f"docs/{page}")
    name = posixpath.normpath(posixpath.join(folder, link))
    return name if not name.startswith("..") and (ROOT / name).exists() else None


def source_page(name: str) -> str:
    return f"source/{name}.md"


def source_text(path: Path) -> str:
    """A file as a page, or the names in a folder."""
    title = f"# {path.relative_to(ROOT).as_posix()}\n\n"
    if path.is_dir():
        return title + "\n".join(f"- `{found.name}`" for found in sorted(path.iterdir()) if found.name[0] not in "._")
    fence = "`" * 5
    return f"{title}{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8')}\n{fence}\n"


def list_of_decisions() -> str:
    """A page with the titles of all decisions."""
    lines = ["# Decisions", "", "What was chosen where there was a choice, why, and what it costs.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"
