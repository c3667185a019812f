"""A user's reference recorded and replayed, a user's port swept, and the smallest fault in it that is caught."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gates import ROOT
from rich.console import Console
from test_bundle import rewrite_job, vouch_again
from test_readme_commands import SMALL_PAIR, console_blocks, decoder_pair, lay_out_decoder

from toolkit.errors import UserError
from toolkit.parity.bundle import bundle
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import ReferenceFacts, ReferenceResult
from toolkit.parity.job.pair import Pair, PairMap, ParameterFacts
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.pairs.options import choices_of, pair_request
from toolkit.parity.pairs.prepare import role_of
from toolkit.parity.pairs.recording import keep_counterparts
from toolkit.parity.pairs.weights import make_weights
from toolkit.parity.trials.limits import Limit, is_sensitive, print_limits
from toolkit.parity.trials.pair_sweep import TRAINING, PairSweep

PAIR = Path(__file__).parents[1] / "pairs" / "mlp"
ASKED = ("--port", "port.py", "--reference-model", "reference.py")

#: How far off the quoted fault is. The bound is the noise of float64, which a processor with other vectors has other
#: digits of.
FACTOR = re.compile(r"[\d.]+e\+\d+(?= times the bound)")

#: A ``sitecustomize.py`` of a machine on which some packages are not installed.
WITHOUT = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition('.')[0] in {absent} else found(name, path, target)
PathFinder.find_spec = find_spec
"""


def toolkit_without(absent: tuple[str, ...], folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """The real command in ``folder``, in processes that find no module of some packages."""
    place = folder / f"without-{absent[0]}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WITHOUT.format(absent=absent))
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """A folder with the pair of two MLPs, which is the current one."""
    shutil.copytree(PAIR, tmp_path / "mlp")
    monkeypatch.chdir(tmp_path / "mlp")
    return tmp_path / "mlp"


# -- record and replay ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with a bundle of the MLP's reference, recorded without Paddle and without the port's file."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copy(PAIR / "reference.py", folder)
    asked = ("--reference-model", "reference.py", "hidden=16", "--dtype", "float64", "-o", "bundle")
    done = toolkit_without(("paddle", "paddlenlp"), folder, "parity", "record", *asked)
    assert done.returncode == 0, done.stderr
    assert "next: toolkit parity replay bundle --port FILE" in done.stdout
    return folder


@pytest.fixture
def copied(recorded, pair) -> Path:
    return Path(shutil.copytree(recorded / "bundle", pair / "bundle"))


@pytest.mark.slow
def test_a_port_is_replayed_without_torch_and_has_the_figures_of_a_direct_gate(copied, pair, command_line):
    assert command_line("parity", *ASKED, "--dtype", "float64", "hidden=16", "--output", "direct")[0] == 0
    (pair / "reference.py").unlink()
    asked = ("replay", "bundle", "--port", "port.py", "--output", "replayed")
    done = toolkit_without(("torch", "transformers"), pair, "parity", *asked)
    assert done.returncode == 0, done.stderr
    direct, replayed = (json.loads((pair / name / "cpu/parity.json").read_text()) for name in ("direct", "replayed"))
    for key in ("tensors", "findings", "notes", "versions", "dtypes", "seed"):
        assert direct[key] == replayed[key], key
    assert any(tensor["name"] == "evaluation/output:ffn.0" for tensor in replayed["tensors"])
    assert replayed["hashes"]["bundle.json"] == files.file_sha256(copied / "bundle.json")


@pytest.mark.slow
def test_a_port_of_another_layout_is_one_line(copied, pair, command_line):
    text = (pair / "port.py").read_text()
    (pair / "port.py").write_text(text.replace('config.get("hidden", 16)', "24"))
    status, _, err = command_line("parity", "replay", "bundle", "--port", "port.py", "--output", "out")
    said = "error: bundle: embedding.weight of the reference is [50, 16], and embed.weight of the port is [50, 24]: "
    assert status == 2 and err.startswith(said) and err.count("\n") == 1


@pytest.mark.slow
def test_a_bundle_names_no_code_and_is_believed_in_nothing_unseen(copied):
    kept = sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file())
    assert {Path(name).suffix for name in kept} == {".json", ".safetensors"}
    assert bundle.open_recording(copied).request.pair == bundle.NO_CODE
    for name in kept:
        if name.endswith(".json"):
            assert ".py" not in (copied / name).read_text(), name
    for changed, message in (
        ({"pair": {"port": "evil.py", "reference": "", "batch_from": "reference", "map": None}}, "names no code"),
        ({"pair": {"port": "", "reference": "", "batch_from": "port", "map": None}}, "names no code"),
        ({"pair": None}, "names no code"),
        ({"model": "reformer"}, "model 'reformer' in job.json, 'pair' in bundle.json"),
        ({"dtypes": ["float16"]}, "float16"),
    ):
        before = (copied / "job.json").read_text()
        rewrite_job(copied, **changed)
        with pytest.raises(UserError, match=f"describes no model that can be judged here: .*{message}"):
            bundle.open_recording(copied)
        (copied / "job.json").write_text(before)
        vouch_again(copied)
    (copied / "reference/describe.json").write_text('{"parameters": [{"name": 1}]}')
    vouch_again(copied)
    with pytest.raises(UserError, match="describes no model that can be judged here"):
        bundle.open_recording(copied)
    (copied / "reference/describe.json").unlink()
    with pytest.raises(UserError, match=r"reference/describe\.json is missing"):
        bundle.open_recording(copied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "is a recording of a reference of yours; name its port with --port FILE"),
        (("--port", "none.py"), "none.py: no such file"),
        (("--port", "reference.py"), "reference.py: has batch(config, rng), but bundle holds the batch"),
        (("--port", "port.py", "--map", "none.yaml"), "--map none.yaml: No such file"),
    ],
)
def test_a_replay_that_cannot_be_is_one_line(copied, command_line, arguments, words):
    status, _, err = command_line("parity", "replay", "bundle", *arguments, "--output", "out")
    assert status == 2 and words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("record", "-o", "b"), "name a --model, or --port and --reference-model"),
        (("record", "--port", "port.py", "-o", "b"), "error: --reference-model is missing"),
        (("record", "--reference-model", "port.py", "-o", "b"), "error: port.py: has no batch(config, rng)"),
        (("record", "--reference-model", "reference.py", "-o", "."), "exists and is not a bundle"),
        (
            ("record", "--reference-model", "reference.py", "--layers", "2", "-o", "b"),
            "error: --layers: is for --model",
        ),
        (("replay", "reference.py"), "is not a bundle"),
        (("sweep", "--port", "port.py", "--gates", "1"), "error: --reference-model is missing"),
        (("sweep", "--reference-model", "reference.py", "--gates", "1"), "error: --port is missing"),
        (("sweep", "--gates", "1"), "name a --model, or --port and --reference-model"),
        (
            ("sweep", *ASKED, "--gates", "1", "--weights", "FOLDER"),
            "error: --weights FOLDER: of a pair there are random",
        ),
        (("sweep", *ASKED, "--gates", "1", "--length", "8"), "error: --length: is for --model"),
        (("sweep", *ASKED, "--gates", "1", "hidden"), "error: hidden: expected KEY=VALUE"),
        (("limits", "--port", "port.py"), "error: --reference-model is missing"),
        (("limits", *ASKED, "--weights", "random"), "error: --weights: is for --model"),
        (("limits", "--model", "ctrl", "n_layer=1"), "only a --port of yours has a config"),
        (("mutants", "--port", "port.py"), "error: --reference-model is missing"),
        (("map", "--port", "port.py"), "error: --reference-model is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_no_pair_is_one_line(pair, command_line, arguments, words):
    status, out, err = command_line("parity", *arguments)
    assert (status, out) == (2, "") and words in err and err.splitlines()[-1].startswith(("error: ", "Error: "))
    assert sorted(path.name for path in pair.iterdir()) == ["port.py", "reference.py"]


def test_a_batch_in_the_ports_file_cannot_be_recorded(pair, command_line):
    text = (pair / "reference.py").read_text()
    start = text.index("def batch(")
    (pair / "port.py").write_text((pair / "port.py").read_text() + text[start:])
    (pair / "reference.py").write_text(text[:start])
    status, _, err = command_line("parity", "record", *ASKED, "-o", "b")
    assert status == 2 and "port.py has batch(config, rng), and is not run where the reference is recorded" in err


def test_of_what_was_recorded_only_counterparts_are_compared():
    names = ("output:a", "evaluation/output:a", "output:b", "evaluation/output:b#1", "gradient:b.weight", "loss")
    facts = ReferenceFacts(epsilons={"a": 1e-5, "b": 1e-6})
    whole = ReferenceResult(tensors={name: TensorRecord(shape=[1]) for name in names}, facts=facts)
    found = keep_counterparts(whole, PairMap(modules={"a": "A"}), Pair("", "", "reference"))
    assert list(found.tensors) == ["output:a", "evaluation/output:a", "gradient:b.weight", "loss"]
    assert found.facts.epsilons == {"a": 1e-5}


# -- what the documents show ------------------------------------------------------------------------------------------


def test_the_files_in_the_readme_are_short_and_pass_for_a_pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, text in decoder_pair().items():
        assert len([line for line in text.splitlines() if line]) <= 20
        (tmp_path / side).write_text(text)
    assert pair_request(port="port.py", reference_model="reference.py", model_config={}, seed=0).pair is not None


@pytest.mark.slow
def test_the_fault_in_the_readme_is_reported_as_quoted(tmp_path, monkeypatch, command_line):
    checkpoint = lay_out_decoder(tmp_path / "decoder")
    monkeypatch.chdir(tmp_path / "decoder")
    port = Path("port.py").read_text()
    assert "(**settings)" in port
    Path("port.py").write_text(port.replace("(**settings)", '(**{**settings, "rms_norm_eps": 1e-6})'))
    status, out, _ = command_line("parity", *ASKED, f"checkpoint={checkpoint}", "--dtype", "float64", "--output", "out")
    ((headline,),) = (block for block in console_blocks() if block[0].startswith("DRIFT add"))
    assert (status, out.splitlines()[0]) == (1, headline)


@pytest.mark.slow
def test_the_fault_in_the_page_for_users_is_reported_as_quoted(tmp_path, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL_PAIR / "reference.py", tmp_path)
    port = (SMALL_PAIR / "port.py").read_text()
    assert "nn.LayerNorm(hidden)" in port
    Path("port.py").write_text(port.replace("nn.LayerNorm(hidden)", "nn.LayerNorm(hidden, 1e-6)"))
    status, out, _ = command_line("parity", *ASKED, "hidden=32", "--output", "out")
    (quoted,) = (block for block in console_blocks() if block[0].startswith("DRIFT norm"))
    assert status == 1
    for printed_line, quoted_line in zip(out.splitlines(), quoted, strict=False):
        assert FACTOR.sub("", printed_line) == FACTOR.sub("", quoted_line)
        printed, expected = (list(map(float, FACTOR.findall(line))) for line in (printed_line, quoted_line))
        assert printed == pytest.approx(expected, rel=0.1)


# -- sweep and limits -------------------------------------------------------------------------------------------------


def test_a_frozen_parameter_has_no_limit_of_a_gradient():
    out = io.StringIO()
    limits = [Limit("a", "linear", 1e-14, 1e-14), Limit("b", "linear", 1e-14, None), Limit("c", "bias", 1e-13, None)]
    print_limits(limits, Console(file=out, width=200))
    linear, bias = out.getvalue().splitlines()[1:]
    assert linear.split() == ["linear", "2", "1.0e-14", "1.0e-14", "1.0e-14", "1.0e-14"]
    assert bias.split() == ["bias", "1", "1.0e-13", "1.0e-13", "frozen", "frozen"]
    assert all(map(is_sensitive, limits)) and not is_sensitive(Limit("d", "linear", 1e-14, 1e-3))


@pytest.fixture
def sweep(pair) -> PairSweep:
    request = pair_request(port="port.py", reference_model="reference.py", model_config={}, seed=0)
    return PairSweep(request, choices_of(["hidden=16", "hidden=24", "hidden=32", "fixed=[1, 2]"]))


def test_a_sweep_draws_all_that_it_may(sweep):
    made = [sweep.make_request(seed) for seed in range(60)]
    assert {one.config["hidden"] for one in made} == {16, 24, 32} and made[0].config["fixed"] == [1, 2]
    assert {sweep.choose_kind(one) for one in made} == {"random", "heavy-tailed", "large-gains"}
    for key, values in TRAINING.items():
        assert {getattr(one.training, key) for one in made} == set(values)
    assert sweep.make_request(3) == made[3] and [one.seed for one in made] == list(range(60))
    assert re.fullmatch(r"\S+ weights, hidden \d+, max_steps \d+, lr_scheduler \w+", sweep.describe_request(made[0]))


def test_made_up_weights_keep_what_a_parameter_is_for():
    facts = [
        ParameterFacts("linear.weight", [30, 40], "linear", False, "linear", "Linear", 0),
        ParameterFacts("linear.bias", [30], "linear", False, "linear", "Linear", 0),
        ParameterFacts("table.weight", [20, 40], "embedding", False, "table", "Embedding", 1),
        ParameterFacts("norm.weight", [900], "other", False, "norm", "OwnNorm", 2),
    ]
    draw = np.random.default_rng(0)
    values = {one.name: draw.standard_normal(one.shape).astype("f") for one in facts}
    values |= {"linear.bias": np.zeros(30, "f"), "norm.weight": np.ones(900, "f")}
    values["table.weight"][3] = 0
    made = {kind: make_weights(facts, values, kind, 0) for kind in ("random", "heavy-tailed", "large-gains")}
    for kind, given in made.items():
        assert given.keys() == values.keys() and all(given[n].dtype == np.float32 for n in given), kind
        assert not given["table.weight"][3].any() and given["linear.bias"].any()
    assert (made["random"]["linear.weight"] == values["linear.weight"]).all()
    assert abs(made["heavy-tailed"]["linear.weight"]).max() > 2 * abs(values["linear.weight"]).max()
    assert 3.5 < made["large-gains"]["linear.weight"].std() / values["linear.weight"].std() < 4.5
    assert 0.8 < made["large-gains"]["table.weight"].std() / values["table.weight"].std() < 1.2
    assert (
        7 < made["large-gains"]["norm.weight"].std() < 9 and abs(made["heavy-tailed"]["norm.weight"].mean() - 1) < 0.1
    )


@pytest.mark.parametrize(
    ("name", "of", "role"),
    [
        ("ln.weight", "norm", "norm_gain"),
        ("ln.beta", "norm", "norm_bias"),
        ("q.weight", "linear", "linear"),
        ("q.bias", "linear", "bias"),
        ("table.weight", "embedding", "embedding"),
        ("own.bias", "other", "other"),
    ],
)
def test_a_parameter_has_the_role_that_families_give_it(name, of, role):
    assert role_of(ParameterFacts(name, [4], of, False, "", "", 0)) == role


@pytest.mark.slow
def test_in_a_sweep_a_right_port_passes_and_one_that_is_wrong_for_one_configuration_does_not(pair, command_line):
    text = (pair / "port.py").read_text()
    (pair / "port.py").write_text(
        text.replace("LayerNorm(hidden)", "LayerNorm(hidden, 1e-4 if hidden == 24 else 1e-5)")
    )
    asked = ("parity", "sweep", *ASKED, "--gates", "2", "--weights", "random", "hidden=16", "hidden=24")
    status, out, _ = command_line(*asked, "--seed", "1")
    lines = {re.search(r"hidden (\d+)", line)[1]: line for line in out.splitlines() if "hidden" in line}
    assert status == 1 and "drift in 1 of 2 gates" in out
    assert re.search(r"^\d: right, nearest 0\.\d+ of its bound", lines["16"])
    assert re.search(r"^\d: DRIFT .*\bln\b.*random weights", lines["24"])


@pytest.mark.slow
def test_what_a_build_refuses_in_a_sweep_is_named(pair, command_line):
    status, _, err = command_line("parity", "sweep", *ASKED, "--gates", "2", "hidden=wide")
    assert status == 2 and err.count("\n") == 1 and err.startswith("error: --seed 0 hidden=wide: the ")
    assert re.search(r"(port|reference)\.py:\d+: TypeError: ", err)


@pytest.mark.slow
def test_the_smallest_fault_in_every_kind_of_parameter_is_caught(pair, command_line):
    status, out, _ = command_line("parity", "limits", *ASKED)
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and "not seen well" not in out
    figures = {row[0]: [float(figure) for figure in row[2:]] for row in rows if len(row) == 6 and row[1].isdigit()}
    assert figures.keys() == {"embedding", "linear", "bias", "norm_gain", "norm_bias"}
    assert all(1e-17 < figure < 1e-12 for row in figures.values() for figure in row)
