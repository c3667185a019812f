"""Test that labels, control codes, folder names and reasons that look like markup are shown literally."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_language_modeling
import test_train
import yaml
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from toolkit import cli
from toolkit.pages.elements import Section, render_page
from toolkit.parity.report.junit import element
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.escape import markdown, markdown_code, visible
from toolkit.terminal.progress import ProgressBar

#: Texts that a terminal, rich, Markdown, HTML, YAML or a table would interpret.
HOSTILE = (
    "[red]out", "[/b]", "[/]", "[bold", ":smile:", "\\[x]", "a|b", "`x`", "``", "<script>alert(1)</script>", "---",
    "\x1b[31mred", "\x1b]0;title\x07", "bell\x07back\x08", "\u009b31m", "{{ x }}", "# title", "& &amp;", "*bold* _it_",
    "{x}", "[a](http://x)", "a\x00b", "%s %d", "$(rm -rf /)",
)  # fmt: skip


def print_to_text(*things: object, **options) -> str:
    console = LiteralConsole(file=(out := io.StringIO()), width=200, force_terminal=False)
    for thing in things:
        console.print(thing, **options)
    return out.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_the_console_prints_text_literally(text):
    visible_text = visible(text)
    assert print_to_text(text, soft_wrap=True) == f"{visible_text}\n"
    table = Table("column", text)
    table.add_row(text, "x")
    assert print_to_text(table).count(visible_text) == 2
    assert "\x1b" not in print_to_text(Text(text), soft_wrap=True)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_progress_bar_shows_text_literally(text):
    console = LiteralConsole(file=(out := io.StringIO()), width=200, force_terminal=True)
    with ProgressBar(console, text, 3) as bar:
        bar.update(1, **{text: 0.5})
        assert isinstance(bar._progress, Progress)
        bar._progress.refresh()
        bar.line(text)
    assert out.getvalue().count(visible(text)) >= 3


@pytest.mark.parametrize("text", [*HOSTILE, "two\nlines", "\r\n---\r\nkey: 1", "", " ", "`", "a`` b"])
def test_a_code_span_and_a_cell_stay_on_one_line(text):
    span, cell = markdown_code(text), markdown(text)
    assert "\n" not in span + cell and "\r" not in span + cell
    fence = re.match("`+", span)[0]
    assert span.endswith(fence) and not re.search(f"(?<!`){fence}(?!`)", span[len(fence) : -len(fence)])
    assert not re.search(r"(?<!\\)(?:\\\\)*[<>|`*\[\]]", re.sub(r"\\[<>|`*\[\]]", "", cell))


def test_reports_escape_characters_that_xml_and_html_cannot_contain():
    text = "".join(map(chr, [*range(32), 0x7F, 0x85, 0xFFFE, 0xFFFF, 0xD800])) + "</script><b>&\"']]>"
    parsed_element = ElementTree.fromstring(ElementTree.tostring(element("failure", message=text)))
    page = render_page("pages/document.html", title=text, sections=[Section(text, [text])])
    page_text = html.unescape(page)
    for decoded_text in (parsed_element.get("message"), page_text):
        assert "</script><b>&\"']]>" in decoded_text and r"\x00" in decoded_text and r"\ud800" in decoded_text
    assert "\x00" not in page and "\x85" not in page
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: object) -> None:
            tags.append(tag)

    Reader().feed(page)
    assert tags.count("p") == 1 and not {"b", "script"} & set(tags)


def front_matter(card: str) -> dict:
    _, header, _ = card.split("---\n", 2)
    return yaml.safe_load(header)


@pytest.fixture
def hostile_recipe(tmp_path) -> Path:
    """Write a recipe with such a name, whose labels are all these texts."""
    folder = tmp_path / "in"
    folder.mkdir()
    labels = [*HOSTILE, "two\nlines"]
    for split_name in ("train", "validation"):
        with (folder / f"{split_name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows([f"{label} text", label.replace("\0", "")] for label in labels * 2)
    values = {**test_train.RECIPE, "data": {**test_train.RECIPE["data"]}, "train": {**test_train.RECIPE["train"]}}
    values["data"]["files"] = {split_name: str(folder / f"{split_name}.csv") for split_name in ("train", "validation")}
    values["train"] |= {"max_steps": 2, "eval_steps": 1}
    (folder / "[x].yaml").write_text(yaml.safe_dump(values))
    return folder / "[x].yaml"


def test_a_run_with_hostile_names_succeeds_and_its_card_shows_them(hostile_recipe, tmp_path, capfd):
    folder, reason = tmp_path / "[/]out :smile: |`a` <b>", "[/] because :smile: | `x` <script> \x1b[31m"
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["finetune", str(hostile_recipe), f"train.output_dir='{folder}'", "--skip-parity", reason])
    out, err = capfd.readouterr()
    assert (exit_info.value.code, err) == (0, "")
    assert f"parity skipped: {visible(reason)}\n" in out and f"run folder: {folder}\n" in out
    card = (folder / "README.md").read_text()
    assert front_matter(card)["library_name"] == "transformers"
    prose = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", card.split("---\n", 2)[2], flags=re.DOTALL)  # without code
    assert not re.search(r"(?<!\\)<", prose) and "\x1b" not in card
    assert card.count("\n---\n") == 1  # the end of the header
    (model_entry,) = front_matter(card)["model-index"]
    assert (
        model_entry["name"] == folder.name
        and model_entry["results"][0]["dataset"]["name"] == "train.csv, validation.csv"
    )
    names = json.loads((folder / "model/config.json").read_text())["id2label"].values()
    assert all(markdown_code(name) in card for name in names) and "two\nlines" in names
    with pytest.raises(SystemExit):
        cli.main(["predict", str(folder), *(word for text in HOSTILE if "\0" not in text for word in ("--text", text))])
    out, err = capfd.readouterr()
    assert err == "" and "\x1b" not in out and "[red]out" in out


def test_control_codes_that_look_like_markup_train_and_generate(tmp_path, capfd):
    codes = {"[/red]": "numbers.txt", "a|b": "cats.txt"}
    (tmp_path / "numbers.txt").write_text(test_language_modeling.counting_text(test_language_modeling.NUMBERS, 300))
    (tmp_path / "cats.txt").write_text(test_language_modeling.counting_text(test_language_modeling.ANIMALS, 300))
    values = json.loads(json.dumps(test_language_modeling.RECIPE))
    values["data"]["sources"] = {code: str(tmp_path / name) for code, name in codes.items()}
    values["train"] |= {"max_steps": 2, "eval_steps": 1}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["finetune", str(tmp_path / "x.yaml"), f"train.output_dir={folder}", "--skip-parity", "a test"])
    out, err = capfd.readouterr()
    assert (exit_info.value.code, err) == (0, "") and "[/red]" in out
    assert r"\[/red\]" in (folder / "README.md").read_text() and r"a\|b" in (folder / "README.md").read_text()
    assert "## \\[/red\\]\n" in (folder / "samples.md").read_text()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["generate", str(folder), "--control", "[/red]", "--prompt", "one [red]", "--length", "3"])
    assert exit_info.value.code == 0 and "Traceback" not in capfd.readouterr().err
