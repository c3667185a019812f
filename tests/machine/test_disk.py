"""Test folders that cannot be written and disks that are full or fill up, each on a separate tmpfs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from soak import some
from test_train import assert_same_run, recipe_file, run  # noqa: F401 - a recipe, its data and a whole run of it

from toolkit import cli
from toolkit.machine.disk import WriteError, explain_write_errors, find_write_obstacle

ROOT = Path(__file__).parents[2]
#: Everything runs in a separate mount namespace, in which the user is root.
UNSHARE = ["unshare", "-rm", "bash", "-c"]


def can_mount() -> bool:
    try:
        return subprocess.run([*UNSHARE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


needs_mount = pytest.mark.skipif(not can_mount(), reason="`unshare -rm` cannot mount a file system here")


def on_small_disk(place: Path, size: str, script: str, **environment: str) -> subprocess.CompletedProcess:
    """Run a shell script that calls `toolkit`; ``place`` is a separate disk."""
    place.mkdir(exist_ok=True)
    preamble = f'set -u; toolkit() {{ "{sys.executable}" -m toolkit "$@"; }}; mount -t tmpfs -o size={size} none "$0"\n'
    return subprocess.run(
        [*UNSHARE, preamble + script, str(place)], capture_output=True, text=True, cwd=ROOT, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_checks_do_not_change_writable_folders(tmp_path):
    assert find_write_obstacle(tmp_path / "a" / "b") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").write_text("x")
    assert find_write_obstacle(tmp_path) is None
    assert find_write_obstacle(tmp_path / ("a/" * 1500)) == "is nested in too many folders"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "is there and is no folder"),
        ("file/below", "cannot be written: Not a directory"),
        ("dangling", "is there and is no folder"),
        ("n" * 300, "no file can be called so: File name too long"),
        ("/proc/runs", "cannot be written: "),
        ("/dev/null/x", "cannot be written: Not a directory"),
        ("a\\0b", "holds something that is no character"),
        ("loop/x", "cannot be written: Too many levels of symbolic links"),
    ],
)
def test_an_impossible_run_folder_is_reported_before_loading(
    recipe_file, tmp_path, monkeypatch, capfd, place, reason  # noqa: F811
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    initial_names = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["finetune", str(recipe_file), f'train.output_dir="{place}"'])
    out, err = capfd.readouterr()
    assert exit_info.value.code == 2 and out == "" and err.count("\n") == 1
    assert err.startswith("error: command line: train.output_dir:") and reason in err
    assert sorted(path.name for path in tmp_path.iterdir()) == initial_names and Path("file").read_text() == "mine"


def test_a_report_that_cannot_be_written_is_detected_before_the_gate(capfd):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["parity", "--model", "ctrl", "--layers", "1", "n_embd=32", "dff=32", "--output", "/proc/reports"])
    out, err = capfd.readouterr()
    assert (exit_info.value.code, out) == (2, "")
    assert err.startswith("error: --output /proc/reports/cpu: cannot be written: ") and err.count("\n") == 1


def test_an_error_that_is_not_an_oserror_is_raised(tmp_path):
    with pytest.raises(KeyError), explain_write_errors(tmp_path / "x"):
        raise KeyError("x")
    with (
        pytest.raises(WriteError, match=r"cannot write .*/x/y: No such file or directory"),
        explain_write_errors(tmp_path / "x/y"),
    ):
        (tmp_path / "x" / "y").write_text("")


@needs_mount
def test_a_disk_too_small_for_checkpoints_is_detected_before_the_gate(recipe_file, tmp_path):  # noqa: F811
    disk = tmp_path / "disk"
    result = on_small_disk(disk, "500k", f'toolkit finetune {recipe_file} train.output_dir="$0/run"; echo $?; ls "$0"')
    assert re.search(r"on cpu\n(note .*\n)*2\n\Z", result.stdout)  # no gate has run, and the disk is empty
    assert (
        "train.output_dir: " in result.stderr and "the run needs about 1.7 MB there, 0.5 MB are free" in result.stderr
    )
    assert result.stderr.count("\n") == 1


@needs_mount
def test_a_read_only_disk_is_detected_before_loading(recipe_file, tmp_path):  # noqa: F811
    script = f'mount -o remount,ro "$0"; toolkit finetune {recipe_file} train.output_dir="$0/run"; echo $?'
    result = on_small_disk(tmp_path / "disk", "1m", script)
    assert result.stdout == "2\n" and "cannot be written: Read-only file system; name another folder" in result.stderr


@needs_mount
@pytest.mark.slow
def test_a_disk_that_fills_up_loses_nothing_and_the_command_resumes(recipe_file, tmp_path):  # noqa: F811
    """Test a disk that another program fills after the first checkpoint, and clears later."""
    train = f'toolkit finetune {recipe_file} train.output_dir="$0/run" train.max_steps=200 --skip-parity "a test"'
    script = f"""
        fill() {{ until ls "$0"/run/checkpoints/step-* >/dev/null 2>&1; do sleep 0.01; done
                  dd if=/dev/zero of="$0/filled" bs=4k 2>/dev/null; }}
        fill & {train}; echo "status $?"; wait; rm "$0/filled"
        {train}; echo "status $?"; ls "$0/run"
    """
    result = on_small_disk(tmp_path / "disk", "4m", script)
    _, _, second = result.stdout.partition("status 1\n")
    assert "resuming" in second and "status 0\n" in second and "metrics.json\n" in second, result
    assert result.stderr.startswith("error: cannot write ") and result.stderr.count("\n") == 1
    assert "No space left on device" in result.stderr and " MB are free" in result.stderr


@needs_mount
@pytest.mark.parametrize("spoil_command", ["mount -o remount,ro", "true"])
def test_a_cache_that_is_read_only_or_full_is_a_note(recipe_file, tmp_path, spoil_command):  # noqa: F811
    train = f"toolkit finetune {recipe_file} train.output_dir={tmp_path}/run train.max_steps=1 --skip-parity 'a test'"
    cache = tmp_path / "disk"
    result = on_small_disk(
        cache, "1m", f'{spoil_command} "$0"; {train}; echo "status $?"', TOOLKIT_CACHE=str(cache / "cache")
    )
    assert result.stdout.endswith("status 0\n")
    assert result.stderr.startswith(f"note: the cache {cache}/cache: ") and result.stderr.count("\n") == 1


#: Sizes of disks, in KiB, that fill up while a run starts, trains, saves or ends.
SIZES = some(range(100, 3200, 100), 8)


@needs_mount
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_a_disk_that_fills_up_is_reported_and_the_command_resumes_with_space(
    recipe_file, run, tmp_path, size  # noqa: F811
):  # fmt: skip
    """Test a disk with the run folder, the cache and the temporary files."""
    disk, run_copy = tmp_path / "disk", tmp_path / "kept"
    train = f'toolkit finetune {recipe_file} train.output_dir="$0/run" --skip-parity "a test"'
    script = f"""
        mkdir -p "$0/tmp"; {train} >/dev/null; echo "status $?"
        mount -o remount,size=64m "$0"; echo "--" >&2
        {train} >/dev/null; echo "status $?"; cp -r "$0/run" {run_copy}; ls "$0/tmp"
    """
    place = {"TOOLKIT_CACHE": str(disk / "cache"), "TMPDIR": str(disk / "tmp")}
    result = on_small_disk(disk, f"{size}k", script, **place)
    first, second = result.stderr.split("--\n")
    lines = [line for line in first.splitlines() if not line.startswith("note: ")]
    if result.stdout.startswith("status 0\n"):  # it was large enough
        assert not lines and "holds a finished run" in second
        return
    assert len(lines) == 1 and lines[0].startswith("error: ") and "traceback" not in lines[0], result
    assert result.stdout.splitlines()[1:] == ["status 0"], result
    assert_same_run(run_copy, run)


@needs_mount
@pytest.mark.slow
@pytest.mark.parametrize("size", ["100k", "700k"])
def test_a_full_temporary_directory_ends_the_gate_in_one_line(recipe_file, tmp_path, size):  # noqa: F811
    """Test a disk that is full for the gate itself, or for a worker."""
    disk = tmp_path / "disk"
    train = f'toolkit finetune {recipe_file} train.output_dir="{tmp_path}/run"; echo "status $?"; ls "$0"'
    result = on_small_disk(disk, size, train, TMPDIR=str(disk))
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    assert "No space left on device" in result.stderr and "status 0" not in result.stdout
    assert "parity-" not in result.stdout and not (tmp_path / "run").exists()
