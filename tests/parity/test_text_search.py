"""Test the search for texts that two tokenizers encode differently, and tokenizers in a checkpoint's folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gates import copied_source, request_for, toolkit_in

from models.families import part
from toolkit import cli
from toolkit.parity.bundle import cache
from toolkit.parity.candidate.tokens import tokenizer_places
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.job.tokenizers import files_of, tokenizer_in
from toolkit.parity.options import make_request
from toolkit.parity.report.headline import describe_place
from toolkit.parity.request.build import write_request
from toolkit.parity.request.gate_options import GateOptions
from toolkit.parity.trials.mutation import trial_request, trial_tokenizer


def test_a_fault_in_the_source_is_found_with_its_line_and_the_shortest_text(tmp_path):
    """The words end at U+001C to U+001F, which `re` and the reference's `regex` treat differently."""
    edit = (r'r"[\S\x1c-\x1f]+\n?"', r'r"\S+\n?"')
    source = copied_source(tmp_path, "models/ctrl/tokenizer.py", edit)
    process = toolkit_in(source, "parity", "texts", "--model", "ctrl", "--texts", "300")
    assert process.returncode == 1, process.stderr
    method = r"\(CTRLTokenizer\.encode_batch, models/ctrl/tokenizer\.py:\d+, class at models/ctrl/tokenizer\.py:\d+\)"
    assert re.search(rf"^DIFFERENT tokenizer:ids {method}: ids of '\\x1[c-f]' differ: \[\],", process.stdout, re.M)
    assert re.search(r"^seed 0: the tokenizers differ on \d+ of 300 texts$", process.stdout, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["reformer"], ["reformer", "--tokenizer", "bytes"], ["ctrl"]])
def test_correct_tokenizers_agree_on_all_random_texts(arguments, capsys):
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "texts", "--seed", "11", "--model", *arguments])
    out = capsys.readouterr().out
    assert exit_error.value.code == 0 and out.endswith("seed 11: the tokenizers differ on 0 of 2000 texts\n"), out


@pytest.mark.parametrize("tokenizer", ["bytes", "no-such-folder", "."])
def test_a_tokenizer_unknown_to_the_family_is_wrong_usage(tokenizer, capsys):
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "texts", "--model", "ctrl", "--tokenizer", tokenizer])
    assert exit_error.value.code == 2
    error = f"error: --tokenizer {tokenizer}: is no folder that holds a tokenizer of ctrl\n"
    assert capsys.readouterr().err == error


def test_every_compared_output_of_a_tokenizer_has_a_source_line():
    root = Path(__file__).resolve().parents[2]
    for kind, model in (("bytes", "reformer"), ("sentencepiece", "reformer"), ("ctrl", "ctrl")):
        places = tokenizer_places(TokenizerJob(kind, [], 8), model)
        for output_name, function_name in (
            ("ids", "encode_batch"),
            ("left", "__call__"),
            ("offsets", "encode_with_offsets"),
        ):
            file, line = places[f"tokenizer:{output_name}"].where.partition(", ")[0].split(":")
            assert f"def {function_name}(" in (root / file).read_text().splitlines()[int(line) - 1]
            assert describe_place(f"tokenizer:{output_name}", places).startswith(f"tokenizer:{output_name} (")


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A small CTRL with a tokenizer, and other content of such folders."""
    from safetensors.numpy import save_file

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    trial_tokenizer("ctrl", folder)
    config = part("ctrl", "config").CONFIG_CLASS(**{**CTRL_TRIAL, "vocab_size": 400})
    config.save_pretrained(folder)
    request = request_for("ctrl", "causal_lm", {**CTRL_TRIAL, "vocab_size": 400}, 24)
    save_file(dict(request.weights.items()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "runs").mkdir()
    return folder


def make_checkpoint_request(folder: Path):
    return make_request(GateOptions(model="ctrl", length=24, batch_size=1, weights_from=str(folder)))


def test_a_checkpoints_tokenizer_is_compared_and_part_of_the_cache_key(checkpoint, tmp_path):
    request = make_checkpoint_request(checkpoint)
    assert request.tokenizer == TokenizerJob("ctrl", [], 24, str(checkpoint))
    assert [path.name for path in files_of(request.tokenizer)] == ["vocab.json", "merges.txt", "tokenizer_config.json"]
    keys = []
    for change in ("", "more "):
        (checkpoint / "merges.txt").write_text((checkpoint / "merges.txt").read_text() + change)
        write_request(request, request.weights, tmp_path / f"job{change}")
        keys.append(cache.key_of(tmp_path / f"job{change}"))
    assert keys[0] != keys[1]
    (checkpoint / "vocab.json").unlink()
    assert make_checkpoint_request(checkpoint).tokenizer is None


def test_a_folder_names_its_kind_of_tokenizer(tmp_path):
    tokenizer = part("reformer", "tokenizer")
    assert tokenizer_in("reformer", tmp_path, ["a"], 8) is None
    tokenizer.ByteTokenizer().save(tmp_path)
    assert tokenizer_in("reformer", tmp_path, ["a"], 8, offsets=True) == TokenizerJob("bytes", ["a"], 8, offsets=True)
    assert tokenizer_in("ctrl", tmp_path, ["a"], 8) is None
    (tmp_path / "pieces").mkdir()
    pieces = trial_tokenizer("reformer", tmp_path / "pieces")
    assert tokenizer_in("reformer", tmp_path / "pieces", pieces.texts, 256, offsets=True) == pieces
    assert trial_request("reformer", "random", 0).tokenizer is None
