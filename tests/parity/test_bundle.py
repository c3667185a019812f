"""Test recorded references: a replay gives the same verdict without torch, and every file of a bundle is checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from damages import DAMAGES, REPLACEMENTS, UNREADABLE, damage
from gates import ROOT, quiet, run

from toolkit import cli
from toolkit.errors import Inconclusive, UserError
from toolkit.parity.bundle import bundle
from toolkit.parity.exchange import files
from toolkit.parity.judge import bounds
from toolkit.parity.trials.mutation import trial_request

#: Options of a small CTRL, so that the real command takes seconds.
SMALL = ["--model", "ctrl", "--layers", "1", "--length", "16", "n_embd=16", "n_head=2", "dff=24", "vocab_size=48"]


@pytest.fixture(scope="module")
def recorded_bundle(tmp_path_factory) -> Path:
    """Return a bundle of a small Reformer, recorded only in float64."""
    folder = tmp_path_factory.mktemp("recorded") / "bundle"
    bundle.record_reference(trial_request("reformer", "random", 0), folder, quiet())
    return folder


@pytest.fixture
def bundle_copy(recorded_bundle, tmp_path) -> Path:
    return Path(shutil.copytree(recorded_bundle, tmp_path / "copy"))


def update_manifest(folder: Path, **changes: object) -> None:
    """Update the manifest to the current files, as someone who forges a bundle would."""
    manifest = json.loads((folder / "bundle.json").read_text())
    for name, entry in manifest["files"].items():
        entry.update(bytes=(folder / name).stat().st_size, sha256=files.file_sha256(folder / name))
    (folder / "bundle.json").write_text(json.dumps({**manifest, **changes}))


def rewrite_job(folder: Path, **changes: object) -> None:
    job = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**job, **changes}))
    update_manifest(folder)


def run_toolkit(*arguments: object, path: Path) -> subprocess.CompletedProcess:
    """Run the real command in a separate process, with `path` first on the module search path."""
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def run_replay(*arguments: object) -> int:
    """Run the command in this process and return its exit status."""
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "replay", *map(str, arguments)])
    return exit_error.value.code


def test_a_replay_gives_the_figures_of_a_direct_gate(recorded_bundle, tmp_path):
    direct, _ = run(trial_request("reformer", "random", 0), tmp_path / "direct" / "cpu")
    assert direct.passed and not direct.cached
    assert run_replay(recorded_bundle, "--output", tmp_path / "replayed") == 0
    reports = [json.loads((tmp_path / name / "cpu/parity.json").read_text()) for name in ("direct", "replayed")]
    for key in ("tensors", "findings", "notes", "recomputed", "versions", "dtypes", "head", "seed"):
        assert reports[0][key] == reports[1][key], key
    identity = files.file_sha256(recorded_bundle / "bundle.json")
    assert reports[1]["hashes"] == {**reports[0]["hashes"], "bundle.json": identity}


@pytest.mark.slow
def test_a_replay_reports_that_it_cannot_remeasure_near_a_bound(recorded_bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "SEMANTIC_FACTOR", 0.5)  # a correct port then has differences beyond its bounds
    monkeypatch.setattr(bounds, "FLOOR_UNITS", 0.0)
    assert run_replay(recorded_bundle, "--output", tmp_path) == 1
    notes = json.loads((tmp_path / "cpu/parity.json").read_text())["notes"]
    assert "not-remeasured" in [note["kind"] for note in notes]


@pytest.mark.slow
def test_a_replay_needs_no_torch(tmp_path):
    """Neither the gate nor the port's process imports torch; a recording without torch fails."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    absent = name.partition('.')[0] in ('torch', 'transformers')\n"
        "    return None if absent else found(name, path, target)\n"
        "PathFinder.find_spec = find_spec\n"
    )
    recording = run_toolkit("parity", "record", *SMALL, "-o", tmp_path / "bundle", path=tmp_path / "nothing")
    assert recording.returncode == 0, recording.stderr
    assert "next: toolkit parity replay" in recording.stdout and " MiB" in recording.stdout
    replay_result = run_toolkit("parity", "replay", tmp_path / "bundle", "--output", tmp_path / "out", path=tmp_path)
    assert replay_result.returncode == 0, replay_result.stderr
    assert replay_result.stdout.startswith("PARITY")
    failed_recording = run_toolkit("parity", "record", *SMALL, "-o", tmp_path / "other", path=tmp_path)
    assert failed_recording.returncode == 3 and "--reference-python" in failed_recording.stderr
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".other*"))


def test_the_manifest_describes_the_recording(recorded_bundle):
    manifest = json.loads((recorded_bundle / "bundle.json").read_text())
    description = manifest["describes"]
    assert (description["model"], description["head"], description["dtypes"]) == (
        "reformer",
        "sequence_classification",
        ["float64"],
    )
    assert description["batch"]["input_ids"] == [5, 112] and description["parameters"]["classifier.out_proj.bias"] == [
        3
    ]
    assert {"torch", "transformers", "python"} <= manifest["versions"].keys()
    assert manifest["flags"]["cuda.matmul.allow_tf32"] is False and manifest["flags"]["cudnn.allow_tf32"] is False
    file_names = {path.relative_to(recorded_bundle).as_posix() for path in recorded_bundle.rglob("*") if path.is_file()}
    assert file_names == {*manifest["files"], "bundle.json"} >= set(bundle.REQUIRED_FILES)


@pytest.mark.slow
def test_a_replay_uses_its_own_device_and_dtypes(bundle_copy, tmp_path):
    rewrite_job(bundle_copy, device="gpu")  # as if recorded on a machine with a GPU
    assert run_replay(bundle_copy, "--dtype", "float32", "--output", tmp_path / "out") == 0
    report = json.loads((tmp_path / "out/cpu/parity.json").read_text())
    assert (report["device"], report["dtypes"]) == ("cpu", ["float32"])


@pytest.mark.parametrize("dtype", ["bfloat16", "all"])
def test_a_reference_is_neither_recorded_nor_replayed_in_bfloat16(dtype, tmp_path, command_line):
    for command in (("record", "--model", "ctrl", "-o", tmp_path / "new"), ("replay", tmp_path / "new")):
        status, _, err = command_line("parity", *command, "--dtype", dtype)
        message = f"error: --dtype {dtype}: no reference is recorded in bfloat16: there each operation is judged on"
        assert status == 2 and err.startswith(message) and len(err.splitlines()) == 1
    request = replace(trial_request("reformer", "random", 0), dtypes=("float64", "bfloat16"))
    with pytest.raises(UserError, match="no reference is recorded in bfloat16"):
        bundle.record_reference(request, tmp_path / "new", quiet())
    assert not (tmp_path / "new").exists()


def flip_a_bit(folder: Path) -> None:
    path = folder / "reference/float64.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def rewrite_result(folder: Path, change: Callable[[dict], object]) -> None:
    """Change the result and its hash, as someone who forges a bundle would."""
    path = folder / "reference/result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    update_manifest(folder)


def change_logits(**changes: object) -> Callable[[Path], None]:
    """Return a function that changes the entry of the logits."""
    return lambda folder: rewrite_result(folder, lambda result: result["tensors"]["logits"].update(changes))


def enlarge_bucket_slack(folder: Path) -> None:
    def change(result: dict) -> None:
        slack = result["facts"]["bucket_slack"]
        slack[next(iter(slack))] = 1e300

    rewrite_result(folder, change)


def rename_in_manifest(name: str):
    def change(folder: Path) -> None:
        manifest = json.loads((folder / "bundle.json").read_text())
        manifest["files"][name] = manifest["files"].pop("job.json")
        (folder / "bundle.json").write_text(json.dumps(manifest))

    return change


def link_out(folder: Path) -> None:
    (folder / "job.json").rename(folder.parent / "elsewhere.json")
    (folder / "job.json").symlink_to(folder.parent / "elsewhere.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip_a_bit, r"reference/float64\.safetensors was changed: its SHA-256"),
        (lambda folder: (folder / "job.json").write_text("{}"), r"job\.json was changed: 2 bytes"),
        (lambda folder: (folder / "weights.safetensors").unlink(), r"weights\.safetensors is missing"),
        (lambda folder: (folder / "reference/x.py").touch(), r"reference/x\.py is not of the bundle"),
        (lambda folder: (folder / "bundle.json").unlink(), r"no readable bundle\.json"),
        (lambda folder: (folder / "bundle.json").write_text("[1"), r"bundle\.json is not JSON"),
        (lambda folder: (folder / "bundle.json").write_text("[1]"), r"bundle\.json is not a JSON object"),
        (lambda folder: update_manifest(folder, schema=1), "has schema 1, this toolkit reads 11"),
        (lambda folder: update_manifest(folder, files={}), r"does not list job\.json"),
        (lambda folder: update_manifest(folder, files=[]), "does not list its files with size and SHA-256"),
        (rename_in_manifest("../job.json"), r"names '\.\./job\.json', which is no file of a bundle"),
        (rename_in_manifest("reference/../../x"), "which is no file of a bundle"),
        (rename_in_manifest("/etc/passwd"), "which is no file of a bundle"),
        (rename_in_manifest("a\\b"), "which is no file of a bundle"),
        (rename_in_manifest("a//b"), "which is no file of a bundle"),
        (rename_in_manifest("bundle.json"), "which is no file of a bundle"),
        (link_out, r"job\.json is a link"),
        (lambda folder: rewrite_job(folder, model="os"), "describes no model that can be judged here: model 'os'"),
        (lambda folder: rewrite_job(folder, head="../x"), "describes no model"),
        (lambda folder: rewrite_job(folder, config={"num_hash": 1}), "describes no model.*num_hash"),
        (lambda folder: rewrite_job(folder, dtypes=["float16"]), "describes no model.*float16"),
        (lambda folder: rewrite_job(folder, streamed=True), "describes no model"),
        (change_logits(rms=1e300), r"rms of logits is said to be 1e\+300; of its values it is 0\."),
        (
            lambda folder: rewrite_result(
                folder, lambda result: result.update(accept={"*": {"why": "known", "within": 1e300}})
            ),
            r"reference/result\.json accepts differences \(\*\); only a --map of your own may do so",
        ),
        (change_logits(shape=[1, 3]), r"shape of logits is said to be \[1, 3\]"),
        (change_logits(noise={}), "logits has the noise of 0 runs in "),
        (
            change_logits(noise={"float32": [0.0] * 5, "float64": []}, noise_max={"float32": [0.0] * 5, "float64": []}),
            "logits has the noise of 0 runs in float64, not of 2",
        ),
        (change_logits(noise={"float32": [-1.0] * 5, "float64": [-1.0] * 2}), "logits has noise of -1.0"),
        (
            change_logits(
                noise={"float32": [1e300] * 5, "float64": [0.0] * 2},
                noise_max={"float32": [1e300] * 5, "float64": [0.0] * 2},
            ),
            r"logits has noise of 1e\+300 in float32, where the largest tensor of its kind has",
        ),
        (
            lambda folder: rewrite_result(folder, lambda result: result["tensors"].pop("logits")),
            "logits has values and",
        ),
        (lambda folder: rewrite_result(folder, lambda result: result["parameters"].clear()), "its parameters are not"),
        (enlarge_bucket_slack, r"bucket_slack of .* is 1e\+300, of numbers up to"),
    ],
)
def test_a_changed_bundle_is_rejected(bundle_copy, change, message):
    bundle.open_recording(bundle_copy)
    change(bundle_copy)
    with pytest.raises(UserError, match=message) as raised_error:
        bundle.open_recording(bundle_copy)
    assert "\n" not in str(raised_error.value)


def test_a_bundle_replaces_only_an_earlier_bundle(recorded_bundle, tmp_path, monkeypatch):
    def copy_recorded_results(jobs, *_):
        shutil.copytree(recorded_bundle / "reference", jobs[0] / "reference", dirs_exist_ok=True)
        (jobs[0] / "reference.log").touch()

    monkeypatch.setattr(bundle, "run_workers", copy_recorded_results)
    request = trial_request("reformer", "random", 0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="exists and is not a bundle"):
        bundle.record_reference(request, tmp_path / "notes", quiet())
    bundle.record_reference(request, tmp_path / "bundle", quiet())
    first = files.file_sha256(tmp_path / "bundle/weights.safetensors")
    bundle.record_reference(trial_request("reformer", "random", 1), tmp_path / "bundle", quiet())
    assert files.file_sha256(tmp_path / "bundle/weights.safetensors") != first
    bundle.open_recording(tmp_path / "bundle")
    (tmp_path / "bundle/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"holds thesis\.tex, which is not part of the bundle there"):
        bundle.record_reference(request, tmp_path / "bundle", quiet())
    assert (tmp_path / "bundle/thesis.tex").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "notes"]


def test_a_reference_that_fails_leaves_no_files(tmp_path):
    request = trial_request("ctrl", "random", 0)
    request.batch["input_ids"] = request.batch["input_ids"] + 10**6
    with pytest.raises(Inconclusive, match="reference could not run"):
        bundle.record_reference(request, tmp_path / "bundle", quiet())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "B"], "B: is not a bundle"),
        (["record", "--model", "ctrl", "-o", "B"], "only a model that is compared as a whole"),
    ],
)
def test_an_impossible_replay_or_recording_is_one_line_and_leaves_no_files(
    arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", *arguments])
    error = capsys.readouterr().err
    assert exit_error.value.code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("file", ["bundle.json", "job.json", "weights.safetensors", "batch.safetensors"])
def test_a_damaged_bundle_is_reported_in_one_line_even_with_an_updated_manifest(bundle_copy, file, name):
    """A damaged file is rejected by its hash; if the manifest was updated, the file is rejected or harmless."""
    damage(bundle_copy / file, name)
    if file != "bundle.json":
        with pytest.raises(UserError) as raised_error:
            bundle.open_recording(bundle_copy)
        assert str(raised_error.value).startswith(f"{bundle_copy}: ") and "\n" not in str(raised_error.value)
        if name in REPLACEMENTS:
            return
        update_manifest(bundle_copy)
    try:
        bundle.open_recording(bundle_copy)
    except UserError as error:
        assert str(bundle_copy) in str(error) and "\n" not in str(error)
    else:
        assert name not in UNREADABLE
