"""Test the fixture for a user's tests, and the reuse of earlier measurements."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from soak import some

from toolkit.errors import ParityDrift
from toolkit.parity import require_parity
from toolkit.parity.pairs import prepare

PAIR = Path(__file__).parents[1] / "pairs" / "operations"
TESTS = """
def test_right(parity):
    assert parity("port.py", "reference.py", op="elu").passed


def test_right_again(parity):
    assert parity("port.py", "reference.py", op="elu").cached


def test_wrong(parity):
    parity("port.py", "reference.py", op="elu", wrong=True)


def test_absent(parity):
    parity("nothing.py", "reference.py")
"""


#: The gates of the user's tests fork their workers from the same server, in the same environment, as these tests.
CONFTEST = f"""
import os, subprocess, sys
os.environ["HOME"] = {str(Path.home())!r}
del os.environ["USERPROFILE"], os.environ["PY_COLORS"]
sys.path.append({str(Path(__file__).parents[1])!r})
import fork_server
subprocess.Popen = fork_server.ForkingPopen
"""


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """Return a pair whose port imports its own module, with a separate cache."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(PAIR / "reference.py", folder)
    text = (PAIR / "port.py").read_text()
    (folder / "port.py").write_text(f"from slopes import SLOPE\n\n{text.replace('else 0.7)', 'else SLOPE)')}")
    (folder / "slopes.py").write_text("SLOPE = 0.7\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def executed_gates(monkeypatch) -> list[object]:
    """Return a list of the gates that run their workers."""
    gates: list[object] = []
    original = prepare.describe_sides
    monkeypatch.setattr(prepare, "describe_sides", lambda *arguments: gates.append(arguments) or original(*arguments))
    return gates


def judge_pair(**options) -> bool:
    return require_parity("port.py", "reference.py", {"op": "elu"}, **options).cached


def test_an_unchanged_pair_is_judged_from_earlier_measurements(pair, executed_gates, capfd):
    assert [judge_pair(), judge_pair()] == [False, True] and len(executed_gates) == 1
    assert capfd.readouterr().out == ""
    assert judge_pair(reuse=False) is False and len(executed_gates) == 2


def change_import(pair: Path) -> dict:
    (pair / "slopes.py").write_text("SLOPE = 0.7  # the same, in another file\n")
    return {}


def change_port(pair: Path) -> dict:
    (pair / "port.py").write_text((pair / "port.py").read_text() + "\n")
    return {}


def change_map(pair: Path) -> dict:
    (pair / "map.yaml").write_text("accept: {loss: {why: it may, within: 0.1}}\n")
    return {"map_file": pair / "map.yaml"}


def change_seed(pair: Path) -> dict:
    return {"seed": 1}


SLOW = [pytest.param(change, marks=pytest.mark.slow) for change in some([change_port, change_map, change_seed], 3)]


@pytest.mark.parametrize("change", [change_import, *SLOW])
def test_any_change_is_measured_again(change, pair, executed_gates):
    judge_pair()
    assert judge_pair(**change(pair)) is False and len(executed_gates) == 2


@pytest.mark.slow
def test_a_drift_is_always_measured_again(pair, executed_gates):
    (pair / "slopes.py").write_text("SLOPE = 0.8\n")
    for _ in range(2):
        with pytest.raises(ParityDrift, match="elu"):
            judge_pair()
    assert len(executed_gates) == 2


@pytest.mark.slow
def test_the_command_always_measures_again(pair, command_line, executed_gates):
    command = ("parity", "--port", "port.py", "--reference-model", "reference.py", "op=elu")
    assert [command_line(*command)[0] for _ in range(2)] == [0, 0] and len(executed_gates) == 2


def test_the_fixture_passes_or_fails_with_the_reason(pair, pytester):
    for file in pair.glob("*.py"):
        shutil.copy(file, pytester.path)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    pytester.syspathinsert(pytester.path)
    result = pytester.runpytest_subprocess("-p", "toolkit.parity.pytest_plugin", "-q", "--junitxml=junit.xml")
    result.assert_outcomes(passed=2, failed=2)
    out = result.stdout.str()
    assert f"DRIFT elu ({pytester.path / 'port.py'}:" in out or "DRIFT elu (port.py:" in out
    assert "nothing.py: no such file" in out and "Traceback" not in out
    cases = {case.get("name"): case for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")}
    properties = {property.get("name"): property.get("value") for property in cases["test_right"].iter("property")}
    assert properties["parity"] == "agrees" and int(properties["parity_tensors"]) > 40
    assert properties["parity_nearest"].endswith(" of its bound")
    assert {property.get("value") for property in cases["test_wrong"].iter("property")} == {"ParityDrift"}
    assert "agrees, as measured before" in [
        property.get("value") for property in cases["test_right_again"].iter("property")
    ]
