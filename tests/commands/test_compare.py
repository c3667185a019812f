"""`toolkit compare`: run folders side by side, finished or not, and the same as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from toolkit import cli

ROWS = [(10, 2.5, 0.5), (20, 2.0, 0.75), (30, 2.25, 0.7)]


def made(folder: Path, accuracy: float | None = 0.8, digest: str | None = "aa" * 32, **changed) -> Path:
    """A run folder; unfinished without an accuracy, and without an identity if there is no digest."""
    folder.mkdir(parents=True)
    values = {
        "task": "classification",
        "data": {"dataset": "csv"},
        "train": {"save_best": "accuracy", "learning_rate": 1e-3, "output_dir": str(folder)},
    }
    for key, value in changed.items():
        values["train"][key] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    (folder / "versions.json").write_text(json.dumps({"numpy": "1.26", "flags": {"THREADS": folder.name}}))
    rows = [{"step": step, "epoch": 1, "split": "validation", "loss": loss, "accuracy": right, "seconds": 1.0}
            for step, loss, right in ROWS]  # fmt: skip
    rows += [{"step": step, "epoch": 1, "split": "train", "loss": 3.0} for step in range(1, 31)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if digest is not None:
        splits = {"train": "bb" * 32, "validation": "cc" * 32, "test": digest}
        (folder / "identity.json").write_text(json.dumps({"splits": splits, "tokenizer": "dd" * 32}))
    if accuracy is not None:
        measured = {"loss": 2.0, "accuracy": accuracy, "macro_f1": None}
        done = {"steps": 30, "seconds": 4.5, "stopped_early": False, "finished_early": False}
        baselines = {"most common label": {"test": {"accuracy": 0.25}}}
        results = {"baselines": baselines, "validation": measured, "test": measured,
                   "training": done, "parameters": 1234,
                   "examples": {"train": 1000, "validation": 20, "test": 30}}  # fmt: skip
        (folder / "metrics.json").write_text(json.dumps(results))
    return folder


def compared(capsys, monkeypatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", *map(str, arguments)])
    captured = capsys.readouterr()
    assert not left.value.code, captured.err
    return captured.out


def row(said: str, key: str) -> list[str]:
    (found,) = re.findall(rf"^│ {re.escape(key)} +│(.*)│$", said, re.MULTILINE)
    return [cell.strip() for cell in found.split("│")]


def test_what_differs_is_shown_and_the_best_marked(tmp_path, capsys, monkeypatch):
    one, other = made(tmp_path / "one"), made(tmp_path / "other", 0.9, learning_rate=2e-3)
    said = compared(capsys, monkeypatch, one, other)
    assert row(said, "train.learning_rate") == ["0.001", "0.002"] and "data.dataset" not in said
    assert "output_dir" not in said and "numpy" not in said and row(said, "flags.THREADS") == ["one", "other"]
    assert row(said, "test accuracy") == ["0.8", "0.9 *"] and row(said, "test loss") == ["2", "2"]
    assert row(said, "test, most common label: accuracy") == ["0.25", "0.25"]
    assert row(said, "test macro_f1") == ["", ""] and row(said, "parity") == ["unknown", "unknown"]
    assert row(said, "train") == ["1,000, " + "b" * 12] * 2
    assert "cannot be compared" not in said


def test_figures_of_other_data_are_not_marked(tmp_path, capsys, monkeypatch):
    one, other = made(tmp_path / "one"), made(tmp_path / "other", 0.9, "ee" * 32)
    said = compared(capsys, monkeypatch, one, other)
    assert "the test data are not the same, so figures on test cannot be compared" in said
    assert row(said, "test accuracy") == ["0.8", "0.9"] and row(said, "validation accuracy") == ["0.8", "0.9 *"]
    old = made(tmp_path / "old", 0.7, None)
    said = compared(capsys, monkeypatch, one, old)
    assert "whether the test data are the same is not recorded" in said
    assert row(said, "validation accuracy") == ["0.8", "0.7"] and row(said, "test")[1] == "30, digest unknown"


def test_perplexities_of_other_tokens_are_not_compared(tmp_path, capsys, monkeypatch):
    runs = [made(tmp_path / name, accuracy) for name, accuracy in (("one", 0.8), ("other", 0.9))]
    for run in runs:
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(text.replace("classification", "language_modeling"))
        identity = json.loads((run / "identity.json").read_text())
        (run / "identity.json").write_text(json.dumps({**identity, "tokenizer": run.name}))
    assert "the tokenizers are not the same, so losses and" in compared(capsys, monkeypatch, *runs)


def test_an_unfinished_run_counts_with_its_best_validation_so_far(tmp_path, capsys, monkeypatch):
    one, other = made(tmp_path / "a" / "run"), made(tmp_path / "b" / "run", None)
    (other / "metrics.jsonl").open("a").write('{"step": 31, "epo')  # it is being written
    said = compared(capsys, monkeypatch, one, other)
    assert row(said, "state") == ["finished", "unfinished"] and row(said, "steps") == ["30", "30"]
    assert row(said, "validation accuracy") == ["0.8 *", "0.75"] and row(said, "test accuracy") == ["0.8", ""]
    assert "Recipe: the same in all runs" in said
    assert "…/a/run" in said and "…/b/run" in said  # the names are the same


def test_the_page_has_the_tables_and_all_curves(tmp_path, capsys, monkeypatch):
    one, other = made(tmp_path / "one"), made(tmp_path / "<b>x", None, learning_rate=2e-3)
    (one / "report.html").write_text("")
    output = tmp_path / "page.html"
    assert f"page: {output}" in compared(capsys, monkeypatch, one, other, "--output", output)
    text = output.read_text()
    for title in ("train loss", "validation loss", "validation accuracy"):
        figures = re.findall(rf"<figure><figcaption>{title}</figcaption>.*?</figure>", text, re.DOTALL)
        axes = ["step", "epoch", *(["second"] if title.startswith("validation") else [])]  # as the rows have them
        assert [re.search(r">(step|epoch|second)</text>", figure)[1] for figure in figures] == axes
        for figure in figures:
            assert figure.count('class="curve-blue"') == figure.count('class="curve-orange"') == 1
    assert 'href="one/report.html"' in text and "<b>x" not in text and "&lt;b&gt;x" in text
    assert str(tmp_path) not in text and "test, most common label: accuracy</th>" in text
    assert "<b>0.8 *</b>" in text and "train.learning_rate" in text and "http://" not in text
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", str(one), str(other), "--output", str(output)])
    assert left.value.code == 2 and "exists and is not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["one", "twice", "no run", "damaged"])
def test_what_cannot_be_compared_is_one_line(tmp_path, capsys, case):
    one, other = made(tmp_path / "one"), made(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    (other / "metrics.json").write_text("{" if case == "damaged" else "{}")
    given, says = {
        "one": ([one], "specify two or more run folders"),
        "twice": ([one, one], "specify two or more run folders, each once"),
        "no run": ([one, tmp_path / "empty"], "empty: holds no recipe.yaml"),
        "damaged": ([one, other], "other/metrics.json: is damaged"),
    }[case]
    with pytest.raises(SystemExit) as left:
        cli.main(["compare", *map(str, given)])
    (line,) = capsys.readouterr().err.splitlines()
    assert left.value.code == 2 and says in line


def test_runs_that_differ_in_their_seed_have_a_mean_and_a_spread(tmp_path, capsys, monkeypatch):
    folders = [made(tmp_path / f"seed-{seed}", accuracy) for seed, accuracy in enumerate((0.7, 0.8, 0.9))]
    for seed, folder in enumerate(folders):
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "seed": seed}))
    page = tmp_path / "page.html"
    said = compared(capsys, monkeypatch, *folders, "--output", page)
    assert "Spread over 3 seeds" in said and "standard deviation" in said
    spread = said[said.index("Spread over") : said.index("Metrics")]
    assert row(spread, "test accuracy") == ["0.8", "0.1", "0.7", "0.9"]
    assert "macro_f1" not in spread
    assert "Spread over 3 seeds" in page.read_text()
    other = made(tmp_path / "other", 0.8, learning_rate=1)
    assert "Spread over" not in compared(capsys, monkeypatch, folders[0], other)
