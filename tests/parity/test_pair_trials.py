"""Test a user's recorded and replayed reference, sweeps over a user's port, and its smallest faults that are caught."""

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
from test_bundle import rewrite_job, update_manifest
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
PAIR_OPTIONS = ("--port", "port.py", "--reference-model", "reference.py")

#: The factor of the quoted fault. The bound is the noise of float64, whose digits depend on the processor's vector
#: instructions.
FACTOR = re.compile(r"[\d.]+e\+\d+(?= times the bound)")

#: A `sitecustomize.py` that simulates a machine without some packages.
BLOCK_IMPORTS = """\
from importlib.machinery import PathFinder
found = PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition('.')[0] in {absent} else found(name, path, target)
PathFinder.find_spec = find_spec
"""


def toolkit_without(absent: tuple[str, ...], folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run the real command in `folder`, in processes that cannot import some packages."""
    place = folder / f"without-{absent[0]}"
    place.mkdir()
    (place / "sitecustomize.py").write_text(BLOCK_IMPORTS.format(absent=absent))
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """Change to a copy of the pair of two MLPs, and return its folder."""
    shutil.copytree(PAIR, tmp_path / "mlp")
    monkeypatch.chdir(tmp_path / "mlp")
    return tmp_path / "mlp"


# -- record and replay ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_folder(tmp_path_factory) -> Path:
    """Return a folder with a bundle of the MLP's reference, recorded without Paddle and without the port's file."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copy(PAIR / "reference.py", folder)
    options = ("--reference-model", "reference.py", "hidden=16", "--dtype", "float64", "-o", "bundle")
    process = toolkit_without(("paddle", "paddlenlp"), folder, "parity", "record", *options)
    assert process.returncode == 0, process.stderr
    assert "next: toolkit parity replay bundle --port FILE" in process.stdout
    return folder


@pytest.fixture
def bundle_copy(recorded_folder, pair) -> Path:
    return Path(shutil.copytree(recorded_folder / "bundle", pair / "bundle"))


@pytest.mark.slow
def test_a_replay_without_torch_gives_the_figures_of_a_direct_gate(bundle_copy, pair, command_line):
    assert command_line("parity", *PAIR_OPTIONS, "--dtype", "float64", "hidden=16", "--output", "direct")[0] == 0
    (pair / "reference.py").unlink()
    options = ("replay", "bundle", "--port", "port.py", "--output", "replayed")
    process = toolkit_without(("torch", "transformers"), pair, "parity", *options)
    assert process.returncode == 0, process.stderr
    direct_report, replayed_report = (
        json.loads((pair / name / "cpu/parity.json").read_text()) for name in ("direct", "replayed")
    )
    for key in ("tensors", "findings", "notes", "versions", "dtypes", "seed"):
        assert direct_report[key] == replayed_report[key], key
    assert any(tensor["name"] == "evaluation/output:ffn.0" for tensor in replayed_report["tensors"])
    assert replayed_report["hashes"]["bundle.json"] == files.file_sha256(bundle_copy / "bundle.json")


@pytest.mark.slow
def test_a_port_of_another_layout_is_rejected_in_one_line(bundle_copy, pair, command_line):
    text = (pair / "port.py").read_text()
    (pair / "port.py").write_text(text.replace('config.get("hidden", 16)', "24"))
    status, _, err = command_line("parity", "replay", "bundle", "--port", "port.py", "--output", "out")
    message = "error: bundle: embedding.weight of the reference is [50, 16], and embed.weight of the port is [50, 24]: "
    assert status == 2 and err.startswith(message) and err.count("\n") == 1


@pytest.mark.slow
def test_a_bundle_names_no_code_and_every_entry_is_checked(bundle_copy):
    file_names = sorted(path.relative_to(bundle_copy).as_posix() for path in bundle_copy.rglob("*") if path.is_file())
    assert {Path(name).suffix for name in file_names} == {".json", ".safetensors"}
    assert bundle.open_recording(bundle_copy).request.pair == bundle.NO_CODE
    for name in file_names:
        if name.endswith(".json"):
            assert ".py" not in (bundle_copy / name).read_text(), name
    for changes, message in (
        ({"pair": {"port": "evil.py", "reference": "", "batch_from": "reference", "map": None}}, "names no code"),
        ({"pair": {"port": "", "reference": "", "batch_from": "port", "map": None}}, "names no code"),
        ({"pair": None}, "names no code"),
        ({"model": "reformer"}, "model 'reformer' in job.json, 'pair' in bundle.json"),
        ({"dtypes": ["float16"]}, "float16"),
    ):
        original_job = (bundle_copy / "job.json").read_text()
        rewrite_job(bundle_copy, **changes)
        with pytest.raises(UserError, match=f"describes no model that can be judged here: .*{message}"):
            bundle.open_recording(bundle_copy)
        (bundle_copy / "job.json").write_text(original_job)
        update_manifest(bundle_copy)
    (bundle_copy / "reference/describe.json").write_text('{"parameters": [{"name": 1}]}')
    update_manifest(bundle_copy)
    with pytest.raises(UserError, match="describes no model that can be judged here"):
        bundle.open_recording(bundle_copy)
    (bundle_copy / "reference/describe.json").unlink()
    with pytest.raises(UserError, match=r"reference/describe\.json is missing"):
        bundle.open_recording(bundle_copy)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "is a recording of a reference of yours; name its port with --port FILE"),
        (("--port", "none.py"), "none.py: no such file"),
        (("--port", "reference.py"), "reference.py: has batch(config, rng), but bundle holds the batch"),
        (("--port", "port.py", "--map", "none.yaml"), "--map none.yaml: No such file"),
    ],
)
def test_an_impossible_replay_is_reported_in_one_line(bundle_copy, command_line, arguments, message):
    status, _, err = command_line("parity", "replay", "bundle", *arguments, "--output", "out")
    assert status == 2 and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
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
            ("sweep", *PAIR_OPTIONS, "--gates", "1", "--weights", "FOLDER"),
            "error: --weights FOLDER: of a pair there are random",
        ),
        (("sweep", *PAIR_OPTIONS, "--gates", "1", "--length", "8"), "error: --length: is for --model"),
        (("sweep", *PAIR_OPTIONS, "--gates", "1", "hidden"), "error: hidden: expected KEY=VALUE"),
        (("limits", "--port", "port.py"), "error: --reference-model is missing"),
        (("limits", *PAIR_OPTIONS, "--weights", "random"), "error: --weights: is for --model"),
        (("limits", "--model", "ctrl", "n_layer=1"), "only a --port of yours has a config"),
        (("mutants", "--port", "port.py"), "error: --reference-model is missing"),
        (("map", "--port", "port.py"), "error: --reference-model is missing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_invalid_pair_is_reported_in_one_line(pair, command_line, arguments, message):
    status, out, err = command_line("parity", *arguments)
    assert (status, out) == (2, "") and message in err and err.splitlines()[-1].startswith(("error: ", "Error: "))
    assert sorted(path.name for path in pair.iterdir()) == ["port.py", "reference.py"]


def test_a_batch_in_the_ports_file_cannot_be_recorded(pair, command_line):
    text = (pair / "reference.py").read_text()
    start = text.index("def batch(")
    (pair / "port.py").write_text((pair / "port.py").read_text() + text[start:])
    (pair / "reference.py").write_text(text[:start])
    status, _, err = command_line("parity", "record", *PAIR_OPTIONS, "-o", "b")
    assert status == 2 and "port.py has batch(config, rng), and is not run where the reference is recorded" in err


def test_only_recorded_tensors_with_a_counterpart_are_compared():
    names = ("output:a", "evaluation/output:a", "output:b", "evaluation/output:b#1", "gradient:b.weight", "loss")
    facts = ReferenceFacts(epsilons={"a": 1e-5, "b": 1e-6})
    reference = ReferenceResult(tensors={name: TensorRecord(shape=[1]) for name in names}, facts=facts)
    reference_subset = keep_counterparts(reference, PairMap(modules={"a": "A"}), Pair("", "", "reference"))
    assert list(reference_subset.tensors) == ["output:a", "evaluation/output:a", "gradient:b.weight", "loss"]
    assert reference_subset.facts.epsilons == {"a": 1e-5}


# -- examples in the documents ----------------------------------------------------------------------------------------


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
    status, out, _ = command_line(
        "parity", *PAIR_OPTIONS, f"checkpoint={checkpoint}", "--dtype", "float64", "--output", "out"
    )
    ((headline,),) = (block for block in console_blocks() if block[0].startswith("DRIFT add"))
    assert (status, out.splitlines()[0]) == (1, headline)


@pytest.mark.slow
def test_the_fault_in_the_page_for_users_is_reported_as_quoted(tmp_path, monkeypatch, command_line):
    monkeypatch.chdir(tmp_path)
    shutil.copy(SMALL_PAIR / "reference.py", tmp_path)
    port = (SMALL_PAIR / "port.py").read_text()
    assert "nn.LayerNorm(hidden)" in port
    Path("port.py").write_text(port.replace("nn.LayerNorm(hidden)", "nn.LayerNorm(hidden, 1e-6)"))
    status, out, _ = command_line("parity", *PAIR_OPTIONS, "hidden=32", "--output", "out")
    (quoted_lines,) = (block for block in console_blocks() if block[0].startswith("DRIFT norm"))
    assert status == 1
    for printed_line, quoted_line in zip(out.splitlines(), quoted_lines, strict=False):
        assert FACTOR.sub("", printed_line) == FACTOR.sub("", quoted_line)
        printed_factors, quoted_factors = (
            list(map(float, FACTOR.findall(line))) for line in (printed_line, quoted_line)
        )
        assert printed_factors == pytest.approx(quoted_factors, rel=0.1)


# -- sweep and limits -------------------------------------------------------------------------------------------------


def test_a_frozen_parameter_has_no_gradient_limit():
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


def test_a_sweep_draws_all_allowed_values(sweep):
    requests = [sweep.make_request(seed) for seed in range(60)]
    assert {request.config["hidden"] for request in requests} == {16, 24, 32} and requests[0].config["fixed"] == [1, 2]
    assert {sweep.choose_kind(request) for request in requests} == {"random", "heavy-tailed", "large-gains"}
    for key, values in TRAINING.items():
        assert {getattr(request.training, key) for request in requests} == set(values)
    assert sweep.make_request(3) == requests[3] and [request.seed for request in requests] == list(range(60))
    assert re.fullmatch(
        r"\S+ weights, hidden \d+, max_steps \d+, lr_scheduler \w+", sweep.describe_request(requests[0])
    )


def test_synthetic_weights_fit_the_role_of_each_parameter():
    facts = [
        ParameterFacts("linear.weight", [30, 40], "linear", False, "linear", "Linear", 0),
        ParameterFacts("linear.bias", [30], "linear", False, "linear", "Linear", 0),
        ParameterFacts("table.weight", [20, 40], "embedding", False, "table", "Embedding", 1),
        ParameterFacts("norm.weight", [900], "other", False, "norm", "OwnNorm", 2),
    ]
    draw = np.random.default_rng(0)
    values = {fact.name: draw.standard_normal(fact.shape).astype("f") for fact in facts}
    values |= {"linear.bias": np.zeros(30, "f"), "norm.weight": np.ones(900, "f")}
    values["table.weight"][3] = 0
    weights_by_kind = {kind: make_weights(facts, values, kind, 0) for kind in ("random", "heavy-tailed", "large-gains")}
    for kind, weights in weights_by_kind.items():
        assert weights.keys() == values.keys() and all(weights[name].dtype == np.float32 for name in weights), kind
        assert not weights["table.weight"][3].any() and weights["linear.bias"].any()
    assert (weights_by_kind["random"]["linear.weight"] == values["linear.weight"]).all()
    assert abs(weights_by_kind["heavy-tailed"]["linear.weight"]).max() > 2 * abs(values["linear.weight"]).max()
    assert 3.5 < weights_by_kind["large-gains"]["linear.weight"].std() / values["linear.weight"].std() < 4.5
    assert 0.8 < weights_by_kind["large-gains"]["table.weight"].std() / values["table.weight"].std() < 1.2
    assert (
        7 < weights_by_kind["large-gains"]["norm.weight"].std() < 9
        and abs(weights_by_kind["heavy-tailed"]["norm.weight"].mean() - 1) < 0.1
    )


@pytest.mark.parametrize(
    ("name", "layer_kind", "role"),
    [
        ("ln.weight", "norm", "norm_gain"),
        ("ln.beta", "norm", "norm_bias"),
        ("q.weight", "linear", "linear"),
        ("q.bias", "linear", "bias"),
        ("table.weight", "embedding", "embedding"),
        ("own.bias", "other", "other"),
    ],
)
def test_a_parameter_has_the_same_role_as_in_the_families(name, layer_kind, role):
    assert role_of(ParameterFacts(name, [4], layer_kind, False, "", "", 0)) == role


@pytest.mark.slow
def test_a_sweep_stops_a_port_that_is_wrong_for_one_configuration(pair, command_line):
    text = (pair / "port.py").read_text()
    (pair / "port.py").write_text(
        text.replace("LayerNorm(hidden)", "LayerNorm(hidden, 1e-4 if hidden == 24 else 1e-5)")
    )
    options = ("parity", "sweep", *PAIR_OPTIONS, "--gates", "2", "--weights", "random", "hidden=16", "hidden=24")
    status, out, _ = command_line(*options, "--seed", "1")
    lines = {re.search(r"hidden (\d+)", line)[1]: line for line in out.splitlines() if "hidden" in line}
    assert status == 1 and "drift in 1 of 2 gates" in out
    assert re.search(r"^\d: right, nearest 0\.\d+ of its bound", lines["16"])
    assert re.search(r"^\d: DRIFT .*\bln\b.*random weights", lines["24"])


@pytest.mark.slow
def test_a_config_that_build_rejects_is_named_in_a_sweep(pair, command_line):
    status, _, err = command_line("parity", "sweep", *PAIR_OPTIONS, "--gates", "2", "hidden=wide")
    assert status == 2 and err.count("\n") == 1 and err.startswith("error: --seed 0 hidden=wide: the ")
    assert re.search(r"(port|reference)\.py:\d+: TypeError: ", err)


@pytest.mark.slow
def test_the_smallest_fault_in_every_kind_of_parameter_is_caught(pair, command_line):
    status, out, _ = command_line("parity", "limits", *PAIR_OPTIONS)
    rows = [line.split() for line in out.splitlines()]
    assert status == 0 and "not seen well" not in out
    figures = {row[0]: [float(figure) for figure in row[2:]] for row in rows if len(row) == 6 and row[1].isdigit()}
    assert figures.keys() == {"embedding", "linear", "bias", "norm_gain", "norm_bias"}
    assert all(1e-17 < figure < 1e-12 for row in figures.values() for figure in row)
