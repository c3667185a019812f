"""A port's gate in a user's own tests: the fixture, and what is measured before being used again."""

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


def test_wrong(parity):
    parity("port.py", "reference.py", op="elu", wrong=True)


def test_absent(parity):
    parity("nothing.py", "reference.py")
"""


#: The gates of those tests fork their workers, as those of these tests do.
CONFTEST = f"""
import subprocess, sys
sys.path.append({str(Path(__file__).parents[1])!r})
import fork_server
subprocess.Popen = fork_server.ForkingPopen
"""


@pytest.fixture
def pair(tmp_path, monkeypatch) -> Path:
    """A pair whose port imports a module of its own, and a cache of its own."""
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
def described(monkeypatch) -> list[object]:
    """The gates that run their workers."""
    found: list[object] = []
    original = prepare.describe_sides
    monkeypatch.setattr(prepare, "describe_sides", lambda *given: found.append(given) or original(*given))
    return found


def judge_pair(**options) -> bool:
    return require_parity("port.py", "reference.py", {"op": "elu"}, **options).cached


def test_an_unchanged_pair_is_judged_from_what_was_measured_before(pair, described, capfd):
    assert [judge_pair(), judge_pair()] == [False, True] and len(described) == 1
    assert capfd.readouterr().out == ""
    assert judge_pair(reuse=False) is False and len(described) == 2


def changed_import(pair: Path) -> dict:
    (pair / "slopes.py").write_text("SLOPE = 0.7  # the same, in another file\n")
    return {}


def changed_port(pair: Path) -> dict:
    (pair / "port.py").write_text((pair / "port.py").read_text() + "\n")
    return {}


def changed_map(pair: Path) -> dict:
    (pair / "map.yaml").write_text("accept: {loss: {why: it may, within: 0.1}}\n")
    return {"map_file": pair / "map.yaml"}


def another_seed(pair: Path) -> dict:
    return {"seed": 1}


SLOW = [pytest.param(change, marks=pytest.mark.slow) for change in some([changed_port, changed_map, another_seed], 3)]


@pytest.mark.parametrize("change", [changed_import, *SLOW])
def test_whatever_changes_is_measured_anew(change, pair, described):
    judge_pair()
    assert judge_pair(**change(pair)) is False and len(described) == 2


@pytest.mark.slow
def test_a_wrong_port_is_never_taken_from_before(pair, described):
    (pair / "slopes.py").write_text("SLOPE = 0.8\n")
    for _ in range(2):
        with pytest.raises(ParityDrift, match="elu"):
            judge_pair()
    assert len(described) == 2


@pytest.mark.slow
def test_the_command_measures_anew(pair, command_line, described):
    asked = ("parity", "--port", "port.py", "--reference-model", "reference.py", "op=elu")
    assert [command_line(*asked)[0] for _ in range(2)] == [0, 0] and len(described) == 2


def test_the_fixture_passes_fails_and_says_why(pair, pytester):
    for file in pair.glob("*.py"):
        shutil.copy(file, pytester.path)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    pytester.syspathinsert(pytester.path)
    result = pytester.runpytest_subprocess("-p", "toolkit.parity.pytest_plugin", "-q", "--junitxml=junit.xml")
    result.assert_outcomes(passed=1, failed=2)
    out = result.stdout.str()
    assert f"DRIFT elu ({pytester.path / 'port.py'}:" in out or "DRIFT elu (port.py:" in out
    assert "nothing.py: no such file" in out and "Traceback" not in out
    cases = {case.get("name"): case for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase")}
    properties = {one.get("name"): one.get("value") for one in cases["test_right"].iter("property")}
    assert properties["parity"] == "agrees" and int(properties["parity_tensors"]) > 40
    assert properties["parity_nearest"].endswith(" of its bound")
    assert {one.get("value") for one in cases["test_wrong"].iter("property")} == {"ParityDrift"}
    again = pytester.runpytest_subprocess("-p", "toolkit.parity.pytest_plugin", "-k", "right", "--junitxml=junit.xml")
    again.assert_outcomes(passed=1)
    assert "agrees, as measured before" in (pytester.path / "junit.xml").read_text()
