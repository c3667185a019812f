"""Test `toolkit compare`: finished and unfinished run folders side by side, in the terminal and as a page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from toolkit import cli

ROWS = [(10, 2.5, 0.5), (20, 2.0, 0.75), (30, 2.25, 0.7)]


def write_run(folder: Path, accuracy: float | None = 0.8, digest: str | None = "aa" * 32, **changed_settings) -> Path:
    """Write a run folder; it is unfinished without an accuracy, and has no identity without a digest."""
    folder.mkdir(parents=True)
    values = {
        "task": "classification",
        "data": {"dataset": "csv"},
        "train": {"save_best": "accuracy", "learning_rate": 1e-3, "output_dir": str(folder)},
    }
    for key, value in changed_settings.items():
        values["train"][key] = value
    (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
    (folder / "versions.json").write_text(json.dumps({"numpy": "1.26", "flags": {"THREADS": folder.name}}))
    rows = [{"step": step, "epoch": 1, "split": "validation", "loss": loss, "accuracy": share, "seconds": 1.0}
            for step, loss, share in ROWS]  # fmt: skip
    rows += [{"step": step, "epoch": 1, "split": "train", "loss": 3.0} for step in range(1, 31)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if digest is not None:
        splits = {"train": "bb" * 32, "validation": "cc" * 32, "test": digest}
        (folder / "identity.json").write_text(json.dumps({"splits": splits, "tokenizer": "dd" * 32}))
    if accuracy is not None:
        metrics = {"loss": 2.0, "accuracy": accuracy, "macro_f1": None}
        training = {"steps": 30, "seconds": 4.5, "stopped_early": False, "finished_early": False}
        baselines = {"most common label": {"test": {"accuracy": 0.25}}}
        results = {"baselines": baselines, "validation": metrics, "test": metrics,
                   "training": training, "parameters": 1234,
                   "examples": {"train": 1000, "validation": 20, "test": 30}}  # fmt: skip
        (folder / "metrics.json").write_text(json.dumps(results))
    return folder


def compare_runs(capsys, monkeypatch, *arguments: object) -> str:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["compare", *map(str, arguments)])
    streams = capsys.readouterr()
    assert not exit_info.value.code, streams.err
    return streams.out


def row(output: str, key: str) -> list[str]:
    (cells,) = re.findall(rf"^│ {re.escape(key)} +│(.*)│$", output, re.MULTILINE)
    return [cell.strip() for cell in cells.split("│")]


def test_differences_are_shown_and_the_best_value_is_marked(tmp_path, capsys, monkeypatch):
    first_run, second_run = write_run(tmp_path / "one"), write_run(tmp_path / "other", 0.9, learning_rate=2e-3)
    output = compare_runs(capsys, monkeypatch, first_run, second_run)
    assert row(output, "train.learning_rate") == ["0.001", "0.002"] and "data.dataset" not in output
    assert "output_dir" not in output and "numpy" not in output and row(output, "flags.THREADS") == ["one", "other"]
    assert row(output, "test accuracy") == ["0.8", "0.9 *"] and row(output, "test loss") == ["2", "2"]
    assert row(output, "test, most common label: accuracy") == ["0.25", "0.25"]
    assert row(output, "test macro_f1") == ["", ""] and row(output, "parity") == ["unknown", "unknown"]
    assert row(output, "train") == ["1,000, " + "b" * 12] * 2
    assert "cannot be compared" not in output


def test_figures_of_other_data_are_not_marked(tmp_path, capsys, monkeypatch):
    first_run, second_run = write_run(tmp_path / "one"), write_run(tmp_path / "other", 0.9, "ee" * 32)
    output = compare_runs(capsys, monkeypatch, first_run, second_run)
    assert "the test data are not the same, so figures on test cannot be compared" in output
    assert row(output, "test accuracy") == ["0.8", "0.9"] and row(output, "validation accuracy") == ["0.8", "0.9 *"]
    old_run = write_run(tmp_path / "old", 0.7, None)
    output = compare_runs(capsys, monkeypatch, first_run, old_run)
    assert "whether the test data are the same is not recorded" in output
    assert row(output, "validation accuracy") == ["0.8", "0.7"] and row(output, "test")[1] == "30, digest unknown"


def test_perplexities_of_other_tokens_are_not_compared(tmp_path, capsys, monkeypatch):
    runs = [write_run(tmp_path / name, accuracy) for name, accuracy in (("one", 0.8), ("other", 0.9))]
    for run in runs:
        text = (run / "recipe.yaml").read_text()
        (run / "recipe.yaml").write_text(text.replace("classification", "language_modeling"))
        identity = json.loads((run / "identity.json").read_text())
        (run / "identity.json").write_text(json.dumps({**identity, "tokenizer": run.name}))
    assert "the tokenizers are not the same, so losses and" in compare_runs(capsys, monkeypatch, *runs)


def test_an_unfinished_run_is_compared_by_its_best_validation(tmp_path, capsys, monkeypatch):
    first_run, second_run = write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run", None)
    (second_run / "metrics.jsonl").open("a").write('{"step": 31, "epo')  # an incomplete line
    output = compare_runs(capsys, monkeypatch, first_run, second_run)
    assert row(output, "state") == ["finished", "unfinished"] and row(output, "steps") == ["30", "30"]
    assert row(output, "validation accuracy") == ["0.8 *", "0.75"] and row(output, "test accuracy") == ["0.8", ""]
    assert "Recipe: the same in all runs" in output
    assert "…/a/run" in output and "…/b/run" in output  # the names are the same


def test_the_page_has_the_tables_and_all_curves(tmp_path, capsys, monkeypatch):
    first_run, second_run = write_run(tmp_path / "one"), write_run(tmp_path / "<b>x", None, learning_rate=2e-3)
    (first_run / "report.html").write_text("")
    output = tmp_path / "page.html"
    assert f"page: {output}" in compare_runs(capsys, monkeypatch, first_run, second_run, "--output", output)
    text = output.read_text()
    for title in ("train loss", "validation loss", "validation accuracy"):
        figures = re.findall(rf"<figure><figcaption>{title}</figcaption>.*?</figure>", text, re.DOTALL)
        axes = ["step", "epoch", *(["second"] if title.startswith("validation") else [])]  # the columns of the rows
        assert [re.search(r">(step|epoch|second)</text>", figure)[1] for figure in figures] == axes
        for figure in figures:
            assert figure.count('class="curve-blue"') == figure.count('class="curve-orange"') == 1
    assert 'href="one/report.html"' in text and "<b>x" not in text and "&lt;b&gt;x" in text
    assert str(tmp_path) not in text and "test, most common label: accuracy</th>" in text
    assert "<b>0.8 *</b>" in text and "train.learning_rate" in text and "http://" not in text
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["compare", str(first_run), str(second_run), "--output", str(output)])
    assert exit_info.value.code == 2 and "exists and is not overwritten" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["one", "twice", "no run", "damaged"])
def test_an_impossible_comparison_is_reported_in_one_line(tmp_path, capsys, case):
    first_run, second_run = write_run(tmp_path / "one"), write_run(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    (second_run / "metrics.json").write_text("{" if case == "damaged" else "{}")
    run_folders, expected_error = {
        "one": ([first_run], "specify two or more run folders"),
        "twice": ([first_run, first_run], "specify two or more run folders, each once"),
        "no run": ([first_run, tmp_path / "empty"], "empty: holds no recipe.yaml"),
        "damaged": ([first_run, second_run], "other/metrics.json: is damaged"),
    }[case]
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["compare", *map(str, run_folders)])
    (line,) = capsys.readouterr().err.splitlines()
    assert exit_info.value.code == 2 and expected_error in line


def test_runs_that_differ_in_their_seed_have_a_mean_and_a_spread(tmp_path, capsys, monkeypatch):
    folders = [write_run(tmp_path / f"seed-{seed}", accuracy) for seed, accuracy in enumerate((0.7, 0.8, 0.9))]
    for seed, folder in enumerate(folders):
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "seed": seed}))
    page = tmp_path / "page.html"
    output = compare_runs(capsys, monkeypatch, *folders, "--output", page)
    assert "Spread over 3 seeds" in output and "standard deviation" in output
    spread = output[output.index("Spread over") : output.index("Metrics")]
    assert row(spread, "test accuracy") == ["0.8", "0.1", "0.7", "0.9"]
    assert "macro_f1" not in spread
    assert "Spread over 3 seeds" in page.read_text()
    other_run = write_run(tmp_path / "other", 0.8, learning_rate=1)
    assert "Spread over" not in compare_runs(capsys, monkeypatch, folders[0], other_run)
