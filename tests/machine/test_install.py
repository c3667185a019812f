"""The name under which the toolkit is installed: `toolkit` on PyPI is another project."""

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
PUBLISHED = [
    *(path for folder in ("toolkit", "models", "recipes", ".github") for path in (ROOT / folder).rglob("*.*")),
    *(ROOT / name for name in ("README.md", "README.zh.md", "CHANGELOG.md", "Makefile", "setup.cfg")),
]


def test_the_name_in_the_messages_is_the_name_in_the_metadata():
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    assert metadata["metadata"]["name"] == DISTRIBUTION != "toolkit"


def test_no_file_advises_to_install_the_other_project():
    advice = re.compile(r"\btoolkit\[|pip3? install[^\n]*?[ '\"]toolkit(?![\w-])")
    assert advice.search("pip install 'toolkit[cpu]'") and advice.search("pip install -U toolkit")
    assert len(PUBLISHED) > 300
    texts = {path: path.read_text(encoding="utf-8") for path in PUBLISHED if path.suffix in ("", ".py", ".md", ".yaml")}
    allowed = re.compile(r"paddle-parity-toolkit\[")
    assert [path for path, text in texts.items() if advice.search(allowed.sub("", text))] == []


@pytest.mark.parametrize("installed", [(), ("paddlepaddle", "paddlepaddle-gpu")])
def test_paddle_that_is_missing_or_there_twice_is_installed_by_the_right_name(tmp_path, monkeypatch, installed):
    monkeypatch.setattr(runtime, "distribution_version", lambda name: "3.0" if name in installed else None)
    with pytest.raises(UserError, match=r"then pip install|not installed; pip install") as source:
        runtime.check_paddle_installation()
    assert "-e '.[cpu]'" in str(source.value) and "-e '.[gpu]'" in str(source.value)
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)  # as in a wheel
    with pytest.raises(UserError) as wheel:
        runtime.check_paddle_installation()
    assert f"'{DISTRIBUTION}[cpu]'" in str(wheel.value) and f"'{DISTRIBUTION}[gpu]'" in str(wheel.value)
    assert install_command("tracking") == f"pip install '{DISTRIBUTION}[tracking]'"
