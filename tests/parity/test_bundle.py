"""Recorded references: the same verdict without torch, and nothing believed that was not checked."""

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
def recorded(tmp_path_factory) -> Path:
    """A bundle of a small Reformer, for float64 alone."""
    folder = tmp_path_factory.mktemp("recorded") / "bundle"
    bundle.record_reference(trial_request("reformer", "random", 0), folder, quiet())
    return folder


@pytest.fixture
def copy(recorded, tmp_path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "copy"))


def vouch_again(folder: Path, **changes: object) -> None:
    """Make the manifest fit the files again, as one who forges a bundle would."""
    manifest = json.loads((folder / "bundle.json").read_text())
    for name, entry in manifest["files"].items():
        entry.update(bytes=(folder / name).stat().st_size, sha256=files.file_sha256(folder / name))
    (folder / "bundle.json").write_text(json.dumps({**manifest, **changes}))


def rewrite_job(folder: Path, **changes: object) -> None:
    job = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**job, **changes}))
    vouch_again(folder)


def toolkit(*arguments: object, path: Path) -> subprocess.CompletedProcess:
    """The real command in a process of its own, with ``path`` first among the places that modules come from."""
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def replay(*arguments: object) -> int:
    """The command, in this process; its exit status."""
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", "replay", *map(str, arguments)])
    return left.value.code


def test_a_replay_gives_the_figures_of_a_direct_gate(recorded, tmp_path):
    direct, _ = run(trial_request("reformer", "random", 0), tmp_path / "direct" / "cpu")
    assert direct.passed and not direct.cached
    assert replay(recorded, "--output", tmp_path / "replayed") == 0
    stored = [json.loads((tmp_path / name / "cpu/parity.json").read_text()) for name in ("direct", "replayed")]
    for key in ("tensors", "findings", "notes", "recomputed", "versions", "dtypes", "head", "seed"):
        assert stored[0][key] == stored[1][key], key
    identity = files.file_sha256(recorded / "bundle.json")
    assert stored[1]["hashes"] == {**stored[0]["hashes"], "bundle.json": identity}


@pytest.mark.slow
def test_a_replay_says_of_what_is_near_its_bound_that_it_cannot_measure_by_more(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "SEMANTIC_FACTOR", 0.5)  # of a right port: its differences seem to be some
    monkeypatch.setattr(bounds, "FLOOR_UNITS", 0.0)
    assert replay(recorded, "--output", tmp_path) == 1
    notes = json.loads((tmp_path / "cpu/parity.json").read_text())["notes"]
    assert "not-remeasured" in [note["kind"] for note in notes]


@pytest.mark.slow
def test_a_replay_needs_no_torch(tmp_path):
    """Neither the gate nor the port's process; and the same machine without torch cannot record."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        "def find_spec(name, path=None, target=None):\n"
        "    absent = name.partition('.')[0] in ('torch', 'transformers')\n"
        "    return None if absent else found(name, path, target)\n"
        "PathFinder.find_spec = find_spec\n"
    )
    made = toolkit("parity", "record", *SMALL, "-o", tmp_path / "bundle", path=tmp_path / "nothing")
    assert made.returncode == 0, made.stderr
    assert "next: toolkit parity replay" in made.stdout and " MiB" in made.stdout
    done = toolkit("parity", "replay", tmp_path / "bundle", "--output", tmp_path / "out", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PARITY")
    refused = toolkit("parity", "record", *SMALL, "-o", tmp_path / "other", path=tmp_path)
    assert refused.returncode == 3 and "--reference-python" in refused.stderr
    assert not (tmp_path / "other").exists() and not list(tmp_path.glob(".other*"))


def test_the_manifest_says_what_was_recorded(recorded):
    manifest = json.loads((recorded / "bundle.json").read_text())
    described = manifest["describes"]
    assert (described["model"], described["head"], described["dtypes"]) == (
        "reformer",
        "sequence_classification",
        ["float64"],
    )
    assert described["batch"]["input_ids"] == [5, 112] and described["parameters"]["classifier.out_proj.bias"] == [3]
    assert {"torch", "transformers", "python"} <= manifest["versions"].keys()
    assert manifest["flags"]["cuda.matmul.allow_tf32"] is False and manifest["flags"]["cudnn.allow_tf32"] is False
    found = {path.relative_to(recorded).as_posix() for path in recorded.rglob("*") if path.is_file()}
    assert found == {*manifest["files"], "bundle.json"} >= set(bundle.REQUIRED_FILES)


@pytest.mark.slow
def test_the_device_and_the_dtypes_are_those_of_the_replay(copy, tmp_path):
    rewrite_job(copy, device="gpu")  # as a machine with a GPU records it
    assert replay(copy, "--dtype", "float32", "--output", tmp_path / "out") == 0
    stored = json.loads((tmp_path / "out/cpu/parity.json").read_text())
    assert (stored["device"], stored["dtypes"]) == ("cpu", ["float32"])


@pytest.mark.parametrize("dtype", ["bfloat16", "all"])
def test_a_reference_is_neither_recorded_nor_replayed_in_bfloat16(dtype, tmp_path, command_line):
    for asked in (("record", "--model", "ctrl", "-o", tmp_path / "new"), ("replay", tmp_path / "new")):
        status, _, err = command_line("parity", *asked, "--dtype", dtype)
        said = f"error: --dtype {dtype}: no reference is recorded in bfloat16: there each operation is judged on"
        assert status == 2 and err.startswith(said) and len(err.splitlines()) == 1
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
    """As one who forges a bundle would, whose hashes fit again."""
    path = folder / "reference/result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    vouch_again(folder)


def of_logits(**changes: object) -> Callable[[Path], None]:
    """What is said of the logits is another."""
    return lambda folder: rewrite_result(folder, lambda result: result["tensors"]["logits"].update(changes))


def of_buckets(folder: Path) -> None:
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
        (lambda folder: vouch_again(folder, schema=1), "has schema 1, this toolkit reads 11"),
        (lambda folder: vouch_again(folder, files={}), r"does not list job\.json"),
        (lambda folder: vouch_again(folder, files=[]), "does not list its files with size and SHA-256"),
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
        (of_logits(rms=1e300), r"rms of logits is said to be 1e\+300; of its values it is 0\."),
        (
            lambda folder: rewrite_result(
                folder, lambda result: result.update(accept={"*": {"why": "known", "within": 1e300}})
            ),
            r"reference/result\.json accepts differences \(\*\); only a --map of your own may do so",
        ),
        (of_logits(shape=[1, 3]), r"shape of logits is said to be \[1, 3\]"),
        (of_logits(noise={}), "logits has the noise of 0 runs in "),
        (
            of_logits(noise={"float32": [0.0] * 5, "float64": []}, noise_max={"float32": [0.0] * 5, "float64": []}),
            "logits has the noise of 0 runs in float64, not of 2",
        ),
        (of_logits(noise={"float32": [-1.0] * 5, "float64": [-1.0] * 2}), "logits has noise of -1.0"),
        (
            of_logits(
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
        (of_buckets, r"bucket_slack of .* is 1e\+300, of numbers up to"),
    ],
)
def test_what_is_not_the_bundle_that_was_recorded_is_refused(copy, change, message):
    bundle.open_recording(copy)
    change(copy)
    with pytest.raises(UserError, match=message) as raised:
        bundle.open_recording(copy)
    assert "\n" not in str(raised.value)


def test_a_bundle_replaces_an_earlier_one_and_nothing_else(recorded, tmp_path, monkeypatch):
    def leave_what_was_recorded(jobs, *_):
        shutil.copytree(recorded / "reference", jobs[0] / "reference", dirs_exist_ok=True)
        (jobs[0] / "reference.log").touch()

    monkeypatch.setattr(bundle, "run_workers", leave_what_was_recorded)
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


def test_a_reference_that_fails_leaves_nothing(tmp_path):
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
def test_what_cannot_be_replayed_or_recorded_is_one_line_and_leaves_nothing(
    arguments, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", *arguments])
    error = capsys.readouterr().err
    assert left.value.code == 2 and error.startswith(f"error: {message}") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("file", ["bundle.json", "job.json", "weights.safetensors", "batch.safetensors"])
def test_a_damaged_bundle_is_named_in_one_line_even_if_its_manifest_vouches_for_it(copy, file, name):
    """Damaged by a disk it is refused; damaged by somebody who writes the manifest anew, it is refused or none."""
    damage(copy / file, name)
    if file != "bundle.json":
        with pytest.raises(UserError) as raised:
            bundle.open_recording(copy)
        assert str(raised.value).startswith(f"{copy}: ") and "\n" not in str(raised.value)
        if name in REPLACEMENTS:
            return
        vouch_again(copy)
    try:
        bundle.open_recording(copy)
    except UserError as problem:
        assert str(copy) in str(problem) and "\n" not in str(problem)
    else:
        assert name not in UNREADABLE
