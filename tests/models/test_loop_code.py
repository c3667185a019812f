"""Test the stored machine code of compiled loops.

It runs only if it can have been written by the user and root alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from models.operations import loop_code


@pytest.fixture
def object_file(tmp_path, monkeypatch) -> Path:
    """Return an object file in the user's cache; it is never loaded, so its content is arbitrary."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = loop_code._folders()[1]
    monkeypatch.setattr(loop_code, "_folders", lambda: [own])
    loop_code._store_code("keep", b"machine code")
    assert loop_code._read_code("keep") == b"machine code"
    return own / loop_code._file_name("keep")


def put_behind_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


UNTRUSTED_CHANGES = {
    "all may write the file": lambda path: path.chmod(0o666),
    "a group may write the file": lambda path: path.chmod(0o664),
    "all may write the folder": lambda path: path.parent.chmod(0o777),
    "a group may write the folder": lambda path: path.parent.chmod(0o770),
    "all may write the parent": lambda path: path.parents[1].chmod(0o777),
    "linked file": put_behind_link,
    "linked folder": lambda path: put_behind_link(path.parent),
    "linked parent": lambda path: put_behind_link(path.parents[1]),
    "pipe": replace_by_pipe,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "another loop's": lambda path: (
        loop_code._store_code("add_row", b"other"),
        next(path.parent.glob("add*")).rename(path),
    ),
    "plain digest": lambda path: path.write_bytes(hashlib.sha256(bytes(4000)).digest() + bytes(4000)),
    "endless": lambda path: os.truncate(path, 2**40),
}


@pytest.mark.parametrize("change", UNTRUSTED_CHANGES.values(), ids=UNTRUSTED_CHANGES)
def test_machine_code_that_others_may_have_written_is_not_loaded(object_file, change):
    change(object_file)
    assert loop_code._read_code("keep") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("level", [0, 1, 2])
def test_machine_code_of_another_user_is_not_loaded(object_file, level):
    os.chown((object_file, *object_file.parents)[level], 65534, 65534)
    assert loop_code._read_code("keep") is None


def test_machine_code_is_stored_in_a_folder_of_the_user(object_file):
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in object_file.parents[:2]] == [0o700, 0o700]
    object_file.parent.chmod(0o777)
    object_file.unlink()
    loop_code._store_code("keep", b"machine code")
    assert not any(object_file.parent.iterdir())


def test_machine_code_is_loaded_again_for_a_user_whose_files_a_group_may_write(object_file):
    object_file.parents[1].chmod(0o775)
    object_file.parent.chmod(0o775)
    object_file.unlink()
    loop_code._store_code("keep", b"machine code")
    assert loop_code._read_code("keep") == b"machine code" and stat.S_IMODE(object_file.parent.stat().st_mode) == 0o700


def test_machine_code_in_the_current_folder_is_not_used(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert loop_code._folders()[1:] == [Path("/home/somebody/.cache/toolkit/loops")]
    for home in ("relative", "~", "."):
        monkeypatch.setenv("HOME", home)
        assert len(loop_code._folders()) == 1
