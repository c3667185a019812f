"""Test the installation name of the toolkit, since `toolkit` on PyPI is another project."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from toolkit.errors import UserError
from toolkit.machine import install, runtime
from toolkit.machine.install import DISTRIBUTION, install_command

ROOT = Path(__file__).parents[2]
#: Files that users read or whose messages they read.
PUBLISHED_FILES = [
    *(path for folder in ("toolkit", "models", "recipes", ".github") for path in (ROOT / folder).rglob("*.*")),
    *(ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "Makefile", "setup.cfg")),
]


def test_the_name_in_the_messages_is_the_name_in_the_metadata():
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["name"] == DISTRIBUTION != "toolkit"


def test_no_file_recommends_the_other_project():
    advice = re.compile(r"\btoolkit\[|pip3? install[^\n]*?[ '\"]toolkit(?![\w-])")
    assert advice.search("pip install 'toolkit[cpu]'") and advice.search("pip install -U toolkit")
    assert len(PUBLISHED_FILES) > 300
    texts = {
        path: path.read_text(encoding="utf-8") for path in PUBLISHED_FILES if path.suffix in ("", ".py", ".md", ".yaml")
    }
    own_name = re.compile(r"paddle-parity-toolkit\[")
    assert [path for path, text in texts.items() if advice.search(own_name.sub("", text))] == []


@pytest.mark.parametrize("installed_wheels", [(), ("paddlepaddle", "paddlepaddle-gpu")])
def test_missing_or_duplicate_paddle_is_reported_with_the_correct_name(tmp_path, monkeypatch, installed_wheels):
    monkeypatch.setattr(runtime, "distribution_version", lambda name: "3.0" if name in installed_wheels else None)
    with pytest.raises(UserError, match=r"then pip install|not installed; pip install") as source:
        runtime.check_paddle_installation()
    assert "-e '.[cpu]'" in str(source.value) and "-e '.[gpu]'" in str(source.value)
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)  # as in a wheel
    with pytest.raises(UserError) as wheel:
        runtime.check_paddle_installation()
    assert f"'{DISTRIBUTION}[cpu]'" in str(wheel.value) and f"'{DISTRIBUTION}[gpu]'" in str(wheel.value)
    assert install_command("tracking") == f"pip install '{DISTRIBUTION}[tracking]'"
