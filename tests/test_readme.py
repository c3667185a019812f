"""The source lines in README.md's sample reports are where the gate would point today, and README.zh.md says the same
in Chinese, here and in recipes/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from pydantic import TypeAdapter

from toolkit.recipe.recipe import Recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PLACE = r"(\w+/[\w/]+\.py):(\d+)"


def source(path: str, line: str) -> str:
    return (ROOT / path).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (rf"^DRIFT [\w.]+\.(\w+) \((\w+), {PLACE}", r"self\.{0} = {1}\(|self\.{0} = self\.\w+\("),
        (rf"\.\w+ \((\w+), \S+, class at {PLACE}", r"^class {0}\b"),
    ],
    ids=["a module", "its class"],
)
def test_a_place_in_the_readme_is_the_line_it_names(sample, expected):
    found = re.findall(sample, README, re.MULTILINE)
    assert found
    for *names, path, line in found:
        wanted = expected.format(*names)
        assert re.search(wanted, source(path, line)), f"README.md: {path}:{line} is {source(path, line).strip()!r}"


def test_the_readme_stays_short():
    assert len(README.encode()) <= 15_000


def blocks(text: str) -> list[str]:
    """The fenced blocks, without their comments, which are translated."""
    return [re.sub(r"\s*(^|\s)# .*", "", block, flags=re.MULTILINE) for block in FENCED.findall(text)]


def code(text: str) -> set[str]:
    """The commands, keys and files that stand within the sentences."""
    return {" ".join(found.split()) for found in re.findall(r"`([^`]+)`", FENCED.sub("", text))}


def links(text: str) -> set[str]:
    """Where the text leads, but for the same text in the other language."""
    return {link.replace(".zh.md", ".md") for link in re.findall(r"\]\(([^)]+)\)", text)} - {"README.md"}


def headings(text: str) -> list[str]:
    return re.findall(r"^#+(?= )", FENCED.sub("", text), re.MULTILINE)


@pytest.fixture(params=[".", "recipes"])
def folder(request) -> Path:
    """A folder whose README.md has a README.zh.md beside it."""
    return ROOT / request.param


@pytest.fixture
def texts(folder) -> tuple[str, str]:
    """The English and the Chinese text."""
    english, chinese = ((folder / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md"))
    return english, chinese


def test_both_readmes_have_the_same_blocks_of_code(texts):
    english, chinese = map(blocks, texts)
    for one, other, others in (("README.md", "README.zh.md", chinese), ("README.zh.md", "README.md", english)):
        for block in english if one == "README.md" else chinese:
            assert block in others, (
                f"{other} lacks a block of {one} (or it differs there in more than comments):\n{block}"
            )
    assert english == chinese, "the blocks of README.zh.md are in another order than those of README.md"


def test_both_readmes_have_the_same_sections_code_and_links(texts):
    english, chinese = texts
    assert headings(english) == headings(chinese), "README.md and README.zh.md have other sections"
    for what in (code, links):
        odd = what(english) ^ what(chinese)
        assert not odd, f"in one of README.md and README.zh.md alone: {', '.join(sorted(odd))}"


def test_the_readmes_lead_to_each_other_and_to_files_that_are_there(folder, texts):
    for text, other in zip(texts, ("README.zh.md", "README.md"), strict=True):
        assert f"]({other})" in "".join(text.splitlines()[:4])
        for link in re.findall(r"\]\(([^)]+)\)", text):
            if not link.startswith("http"):
                assert (folder / link.partition("#")[0]).exists(), link


#: By document, the folder that its paths of source files are relative to.
DOCUMENTS = {
    "README.md": ".",
    "recipes/README.md": ".",
    "recipes/README.zh.md": ".",
    "models/README.md": "models",
    "toolkit/commands/bench/README.md": "toolkit/commands/bench",
    ".github/CONTRIBUTING.md": ".",
    **dict.fromkeys(
        (f"toolkit/parity/{name}.md" for name in ("README", "PAIRS", "INTERNALS", "MEASUREMENTS")), "toolkit/parity"
    ),
}
#: What a path of a source file begins with: the packages, and the folders of models and of the gate.
ROOMS = {"toolkit", "models", "tests"} | {
    folder.name for above in ("models", "toolkit/parity") for folder in (ROOT / above).iterdir() if folder.is_dir()
}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_source_files_that_a_document_names_are_there(document):
    """Written with their room. Capitals stand for any family; a file without a room is of the user's, or of the room
    that was named before it."""
    text = FENCED.sub("", (ROOT / document).read_text(encoding="utf-8"))
    named = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.(?:py|yaml))\b", text)
    missing = [path for path in named if not re.search("[A-Z]{2}", path) and not any(
        (ROOT / folder / path).is_file() for folder in (DOCUMENTS[document], "."))]  # fmt: skip
    assert missing == []


def test_the_readme_of_models_names_files_with_their_room():
    text = (ROOT / "models/README.md").read_text(encoding="utf-8")
    assert re.findall(r"`(\w+\.py)`", text) == ["collector.py", "families.py"]


def examples_of_keys() -> list[tuple[str, str, str]]:
    """Return section, key and example of each row in the tables of recipes/README.md; a row may continue a key."""
    text = (ROOT / "recipes/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:`(\w+)\.(\w+)`)? ?\| `([^`]+)` \|", text, re.MULTILINE)
    examples, key = [], ("", "")
    for section, name, example in rows:
        key = (section, name) if section else key
        examples.append((*key, example))
    return [row for row in examples if row[0] in Recipe.model_fields]


@pytest.mark.parametrize(("section", "name", "example"), examples_of_keys())
def test_the_example_of_a_key_is_a_value_of_this_key(section, name, example):
    field = Recipe.model_fields[section].annotation.model_fields[name]
    adapter = TypeAdapter(Annotated[(field.annotation, *field.metadata, "as in the recipe")])
    assert adapter.validate_python(yaml.safe_load(example)) is not None


def test_the_tables_of_keys_have_examples_for_all_sections():
    sections = [section for section, *_ in examples_of_keys()]
    assert len(sections) > 40 and set(sections) >= {"data", "model", "train", "tracking", "parity"}
