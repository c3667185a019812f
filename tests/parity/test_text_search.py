"""The search for texts on which tokenizers differ, and the tokenizer that a checkpoint's folder brings along."""

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
    """Words that end at U+001C to U+001F, for which `re` and the reference's `regex` differ."""
    edit = (r'r"[\S\x1c-\x1f]+\n?"', r'r"\S+\n?"')
    source = copied_source(tmp_path, "models/ctrl/tokenizer.py", edit)
    done = toolkit_in(source, "parity", "texts", "--model", "ctrl", "--texts", "300")
    assert done.returncode == 1, done.stderr
    method = r"\(CTRLTokenizer\.encode_batch, models/ctrl/tokenizer\.py:\d+, class at models/ctrl/tokenizer\.py:\d+\)"
    assert re.search(rf"^DIFFERENT tokenizer:ids {method}: ids of '\\x1[c-f]' differ: \[\],", done.stdout, re.M)
    assert re.search(r"^seed 0: the tokenizers differ on \d+ of 300 texts$", done.stdout, re.M)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["reformer"], ["reformer", "--tokenizer", "bytes"], ["ctrl"]])
def test_right_tokenizers_agree_on_all_that_is_drawn(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", "texts", "--seed", "11", "--model", *arguments])
    out = capsys.readouterr().out
    assert left.value.code == 0 and out.endswith("seed 11: the tokenizers differ on 0 of 2000 texts\n"), out


@pytest.mark.parametrize("tokenizer", ["bytes", "no-such-folder", "."])
def test_a_tokenizer_that_the_family_has_not_is_wrong_usage(tokenizer, capsys):
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", "texts", "--model", "ctrl", "--tokenizer", tokenizer])
    assert left.value.code == 2
    error = f"error: --tokenizer {tokenizer}: is no folder that holds a tokenizer of ctrl\n"
    assert capsys.readouterr().err == error


def test_everything_of_a_tokenizer_that_is_compared_has_the_line_that_makes_it():
    root = Path(__file__).resolve().parents[2]
    for kind, model in (("bytes", "reformer"), ("sentencepiece", "reformer"), ("ctrl", "ctrl")):
        places = tokenizer_places(TokenizerJob(kind, [], 8), model)
        for what, name in (("ids", "encode_batch"), ("left", "__call__"), ("offsets", "encode_with_offsets")):
            file, line = places[f"tokenizer:{what}"].where.partition(", ")[0].split(":")
            assert f"def {name}(" in (root / file).read_text().splitlines()[int(line) - 1]
            assert describe_place(f"tokenizer:{what}", places).startswith(f"tokenizer:{what} (")


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """A small CTRL with a tokenizer, and what else lies in such folders."""
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


def asked(folder: Path):
    return make_request(GateOptions(model="ctrl", length=24, batch_size=1, weights_from=str(folder)))


def test_the_tokenizer_in_a_checkpoint_s_folder_is_compared_and_decides_what_is_cached(checkpoint, tmp_path):
    request = asked(checkpoint)
    assert request.tokenizer == TokenizerJob("ctrl", [], 24, str(checkpoint))
    assert [path.name for path in files_of(request.tokenizer)] == ["vocab.json", "merges.txt", "tokenizer_config.json"]
    keys = []
    for change in ("", "more "):
        (checkpoint / "merges.txt").write_text((checkpoint / "merges.txt").read_text() + change)
        write_request(request, request.weights, tmp_path / f"job{change}")
        keys.append(cache.key_of(tmp_path / f"job{change}"))
    assert keys[0] != keys[1]
    (checkpoint / "vocab.json").unlink()
    assert asked(checkpoint).tokenizer is None


def test_a_folder_of_bytes_or_pieces_says_which(tmp_path):
    tokenizer = part("reformer", "tokenizer")
    assert tokenizer_in("reformer", tmp_path, ["a"], 8) is None
    tokenizer.ByteTokenizer().save(tmp_path)
    assert tokenizer_in("reformer", tmp_path, ["a"], 8, offsets=True) == TokenizerJob("bytes", ["a"], 8, offsets=True)
    assert tokenizer_in("ctrl", tmp_path, ["a"], 8) is None
    (tmp_path / "pieces").mkdir()
    pieces = trial_tokenizer("reformer", tmp_path / "pieces")
    assert tokenizer_in("reformer", tmp_path / "pieces", pieces.texts, 256, offsets=True) == pieces
    assert trial_request("reformer", "random", 0).tokenizer is None
