"""Links from one page to another lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
NUMBER = re.compile(r"^(\d{4})-")


def text_of(page: Path) -> str:
    """Without code, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def links_of(page: Path) -> list[str]:
    return [link for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))) if "://" not in link]


def anchor_of(heading: str) -> str:
    """As a forge makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def dead_links(page: Path) -> list[str]:
    found = []
    for link in links_of(page):
        path, _, anchor = unquote(link).partition("#")
        target = page if not path else page.parent / path
        anchors = map(anchor_of, HEADING.findall(text_of(target))) if target.suffix == ".md" and target.exists() else ()
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_decision_is_named_by_its_number(page: Path) -> None:
    """``[decision 7](decisions/0007-...)``."""
    for number, target in re.findall(r"\[(?:[Dd]ecision )?(\d+)\]\(([^)#]+)\)", text_of(page)):
        named = NUMBER.match(Path(target).name)
        assert named is None or int(named[1]) == int(number), f"[{number}]({target})"


def test_decisions_have_numbers_of_their_own() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=str)
def test_no_program_has_spark_try_failed_tasks_more_often(page: Path) -> None:
    """Slots do not need that, and the user's own failing queries would be tried as often."""
    programs = re.findall(r"^```.*?^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [line for text in programs for line in text.splitlines() if re.search(r"local\[[^\]]*,|maxFailures", line)]
    assert found == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "decisions"], ids=str)
def test_programs_give_spark_the_settings_that_commands_give_it(page: Path) -> None:
    """So that a user's program does what the figures of the experiments say."""
    programs = re.findall(r"^```python.*?^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [text for text in programs if "SparkSession.builder" in text and "spark_settings()" not in text]
    assert found == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `b`, c\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-b-c) [c](#here) `[x](y)` [d](gone.md) [e](https://a.b/c)\n\n## Here\n"
    )
    assert dead_links(page) == ["gone.md"]
    page.write_text("[b](other.md#d) [c](#there)\n")
    assert dead_links(page) == ["other.md#d", "#there"]


WALKED = re.compile(r"\[`[^`]+`\]\(\.\./([^)]+\.py)\): ((?:`\w+`(?:, )?)+)")


def test_the_tour_names_what_is_there() -> None:
    """Each file of the tour defines the functions and classes that stand beside it."""
    walked = WALKED.findall((ROOT / "docs" / "tour.md").read_text("utf-8"))
    assert len(walked) > 40
    missing = [
        f"{path}: {name}"
        for path, names in walked
        for name in re.findall(r"\w+", names)
        if not re.search(rf"(def|class) {name}\b", (ROOT / path).read_text("utf-8"))
    ]
    assert missing == []


def test_the_glossary_names_places_that_are_there() -> None:
    words_only, _, _ = (ROOT / "docs" / "glossary.md").read_text("utf-8").partition("\n\n## ")
    rows = [line.split("|") for line in words_only.splitlines()[6:]]
    places = [row[3].strip().strip("`") for row in rows if not row[3].strip().startswith("[")]
    assert len(places) > 40
    assert [place for place in places if not any((ROOT / top / place).exists() for top in ("", "flinkplus"))] == []
    words = [row[1].strip() for row in rows]
    assert words == sorted(words) and len(words) == len(set(words))
