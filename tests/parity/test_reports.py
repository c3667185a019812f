"""Test the files that a gate writes: the page for a person, the XML for a CI system, and the JSON behind both."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from models.families import part
from toolkit.files.strict_json import dumps
from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateFacts,
    CandidateResult,
    Execution,
    Note,
    Place,
    ReferenceFacts,
    ReferenceResult,
)
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.gate import run_gate
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.report.json import REPORT_SCHEMA, as_content
from toolkit.parity.report.junit import build_junit
from toolkit.parity.report.page import FINDINGS_SHOWN, build_page
from toolkit.parity.report.report import Report, remove_report
from toolkit.parity.report.terminal import print_report
from toolkit.parity.request.request import GateRequest

SHRINK = 2.0**-29
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\x1b[31m\x00\ud800]]>"
NOISY_GRADIENT = "gradient:transformer.h.1.key.bias"
FORWARD = (
    "output:transformer.w",
    "output:transformer.h.0.norm",
    "output:transformer.h.0",
    "output:transformer.h.1",
    "logits",
    "loss",
)
GRADIENTS = ("gradient:transformer.w.weight", "gradient:transformer.h.0.norm.weight", NOISY_GRADIENT)


def make_record(noise: float) -> TensorRecord:
    return TensorRecord(
        shape=[4],
        rms=1.0,
        max=3.0,
        noise={"float32": [noise / 2, noise], "float64": [noise * SHRINK / 2]},
        noise_max={"float32": [noise, 3 * noise], "float64": [noise * SHRINK]},
    )


def make_report(names=FORWARD + GRADIENTS, dtypes=("float64", "float32"), wrong: str = "") -> Report:
    """Return a report with synthetic measurements.

    Args:
        wrong: first of the tensors whose float64 error is a thousand times its bound; all later tensors have it too.
    """
    tensors = {name: make_record(1e3 if name == NOISY_GRADIENT else 1e-7) for name in names}
    reference = ReferenceResult(
        tensors=tensors,
        facts=ReferenceFacts(),
        buffers=["transformer.h.0.mask"],
        execution=Execution({"torch": "2.0", "transformers": "4.0"}, seconds=1.5, peak_bytes=10**9),
    )
    sides = {}
    for dtype in dtypes:
        error = 1e-7 * (SHRINK if dtype == "float64" else 1)
        port_stats = {name: TensorStats([4], rms=error, max=3 * error) for name in names}
        port_stats[names[0]].rms = port_stats[names[0]].max = 0.0
        if wrong and dtype == "float64":
            for name in names[names.index(wrong) :]:
                port_stats[name].rms, port_stats[name].max = 1e-9, 3e-9
        sides[dtype] = CandidateDtype(
            tensors=port_stats,
            facts=CandidateFacts(),
            recomputed={name: TensorStats([4], rms=1e-16, max=3e-16) for name in names if is_gradient(name)},
            places={"transformer.h.0.norm": Place("LayerNorm", "models/ctrl/modeling.py:7")},
        )
    candidate = CandidateResult(
        dtypes=sides,
        execution=Execution({"paddlepaddle": "3.0", "python": HOSTILE}, {"FLAGS_x": HOSTILE}, seconds=2.5),
    )
    verdict = judge(reference, candidate)
    return Report(
        request=GateRequest("ctrl", "causal_lm", {"n_layer": 2, "note": HOSTILE}, {}, {}, dtypes=dtypes),
        verdict=verdict,
        culprit=first_at_fault(verdict, list(tensors)),
        reference=reference,
        candidate=candidate,
        randomized=0,
        seconds=4.25,
        hashes={HOSTILE: "00ff"},
    )


def make_report_with_findings(*findings: Finding) -> Report:
    """Return a report without comparisons that contains these findings."""
    report = make_report()
    report.verdict = Verdict(findings=list(findings), notes=[Note("reference-leaks", {"places": HOSTILE})])
    report.culprit = first_at_fault(report.verdict, [])
    return report


@pytest.fixture
def drift() -> dict:
    return as_content(make_report(wrong="output:transformer.h.0.norm"))


class ParsedPage(HTMLParser):
    """The elements of a page and the rows of its table of tensors.

    It checks that each element is closed in the correct place.
    """

    VOID = ("meta", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.words: dict[str, str] = {}
        self.in_tensors = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        self.in_tensors = (self.in_tensors or ("id", "tensors") in attributes) and tag != "section"
        if tag == "tr" and self.in_tensors:
            self.rows.append([])
        if tag in ("th", "td") and self.in_tensors:
            self.rows[-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if not self.open:
            return
        self.words[self.open[-1]] = self.words.get(self.open[-1], "") + data
        if self.in_tensors and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data

    def of_class(self, name: str, tag: str) -> list[dict[str, str]]:
        return [a for element_tag, a in self.elements if element_tag == tag and name in a.get("class", "").split()]


class Chart(ParsedPage):
    """The elements of a chart, the points of its curves, and its marks."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        curves = re.findall(r'<g class="curve-(\w+)"><path d="([^"]*)"', text)
        self.curves = {series: [tuple(map(float, point)) for point in re.findall(r"[ML] (\S+) (\S+)", path)]
                       for series, path in curves}  # fmt: skip
        marks = re.findall(r'<g class="(noisy|failed) (\w+)">(.*?)</g></g>', text)
        self.marks = {kind: sum(uses.count("<use ") for each, _, uses in marks if each == kind)
                      for kind in ("noisy", "failed")}  # fmt: skip


def find_charts(text: str) -> list[Chart]:
    return [Chart(chart) for chart in re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', text, re.DOTALL)]


def find_depth_charts(text: str) -> list[Chart]:
    """Return the charts over depth; the first chart of a page is the summary."""
    return find_charts(text)[1:]


def count_points(picture: Chart, series: str) -> int:
    return len(picture.curves[series]) + picture.marks["noisy"] // 4  # bound, R32, P32 and P64


# -- the page ---------------------------------------------------------------------------------------------------------


def test_every_compared_tensor_is_on_the_page_and_the_worst_is_first(drift):
    head, *rows = ParsedPage(build_page(drift)).rows
    assert [cell for cell in head if cell] == [] and len(head) == 10  # the titles are buttons
    assert {(row[0], row[2]) for row in rows} == {(t["name"], t["dtype"]) for t in drift["tensors"]}
    assert len(rows) == len(drift["tensors"]) == 18
    margins = [float(row[8]) for row in rows if row[9] != "float32 is noise"]
    assert margins == sorted(margins, reverse=True) and margins[0] > 1
    assert [row[9] for row in rows].count("failed") == sum(not tensor["passed"] for tensor in drift["tensors"]) > 0
    assert all(row[1] == row[0].partition(":")[0] for row in rows)


def test_the_page_loads_no_other_files(drift):
    page = ParsedPage(build_page(drift))
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "image", "base"}
    targets = {a[key] for _, a in page.elements for key in {"src", "href", "xlink:href"} & a.keys()}
    assert targets and all(target.startswith("#") for target in targets)
    look = page.words["style"] + page.words["script"]
    assert not re.search(r"https?:|//[a-z]|url\(|@import|fetch|XMLHttpRequest|import\(", look)
    assert re.search("https?:", build_page(as_content(make_report()))) is None
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_a_name_cannot_break_out_of_the_page():
    names = (*FORWARD, f"output:{HOSTILE}", f"gradient:{HOSTILE}")
    content = as_content(make_report(names=names, wrong=f"output:{HOSTILE}"))
    content["head"] = content["model"] = HOSTILE
    text = build_page(content)
    text.encode("utf-8")
    page = ParsedPage(text)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert "img" not in dict(page.elements)
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    escaped_name = HOSTILE.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\ud800", "\\ud800")
    assert f"output:{escaped_name}" in {row[0] for row in page.rows}
    assert f"output:{escaped_name}" in page.words["h1"]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_the_curves_have_a_point_for_every_output_and_every_gradient(drift):
    forward, backward = find_depth_charts(build_page(drift))
    for picture, names in ((forward, FORWARD), (backward, GRADIENTS[::-1])):
        hovers = picture.of_class("hover", "rect")
        assert len(hovers) == len(names)
        assert [count_points(picture, series) for series in ("r32", "p32", "p64", "bound")] == [len(names)] * 4
        title = picture.words["title"]
        assert [title.index(name) for name in names] == sorted(title.index(name) for name in names)
        assert picture.words["desc"].startswith(f"{len(names)} tensors")
    # A mark shows where float64 fails; the gradient that is noise in float32 is not on the curve.
    assert forward.marks["failed"] == len(FORWARD) - 1
    assert backward.marks["noisy"] + backward.marks["failed"] == 4 + 2


def test_the_summary_has_the_largest_distance_of_each_part(drift):
    summary = find_charts(build_page(drift))[0]
    largest = {}
    for tensor in drift["tensors"]:
        if tensor["informative"]:
            part = f"{'Backward' if tensor['kind'] == 'gradient' else 'Forward'}, {tensor['dtype']}"
            largest[part] = max(largest.get(part, 0.0), tensor["margin"])
    printed_maxima = dict(re.findall(r"(\w+, \w+): \d+ tensors, largest (\S+?)(?:;|$)", summary.words["desc"]))
    assert printed_maxima == {part: f"{margin:.2g}" for part, margin in largest.items()} and len(printed_maxima) == 4
    assert all(f"{margin:.2g}" in summary.words["text"] for margin in largest.values())


def test_layers_are_marked_in_the_order_of_the_pass():
    names = [f"{kind}:transformer.h.{layer}.x" for kind in ("output", "gradient") for layer in range(3)]
    forward, backward = find_depth_charts(build_page(as_content(make_report(names=names))))
    numbers = [re.findall(r"\d", picture.words["text"].partition("layer")[0])[:3] for picture in (forward, backward)]
    assert numbers == [["0", "1", "2"], ["2", "1", "0"]]


def test_errors_lie_on_a_logarithmic_scale(drift):
    forward, _ = find_depth_charts(build_page(drift))
    heights = [y for _, y in forward.curves["p32"]]
    # Exactly equal tensors are at the bottom; equal errors have the same height.
    assert heights[0] > max(heights[1:]) and len(set(heights[1:])) == 1
    assert {y for _, y in forward.curves["r32"]} == {heights[1]}


def test_a_drift_is_named_as_on_the_terminal(drift):
    page = ParsedPage(build_page(drift))
    place = "transformer.h.0.norm (LayerNorm, models/ctrl/modeling.py:7)"
    assert page.words["span"].startswith("DRIFT") and page.words["h1"].strip() == place
    assert drift["culprit"]["message"] in page.words["p"]
    assert page.of_class("drift", "header")
    passing_page = ParsedPage(build_page(as_content(make_report())))
    assert passing_page.words["span"].startswith("PARITY") and not passing_page.of_class("failed-row", "tr")
    assert "18 tensors of the port agree" in passing_page.words["h1"]


def print_to_text(report: Report, brief: bool) -> str:
    print_report(
        report, Path("run/parity/parity.html"), Console(file=(out := io.StringIO()), width=200), is_brief=brief
    )
    return out.getvalue()


def test_the_brief_report_is_one_line_for_a_pass_and_complete_for_a_failure():
    report, drift = make_report(), make_report(wrong=FORWARD[1])
    full_output, (line,) = print_to_text(report, False), print_to_text(report, True).splitlines()
    agree, margin = full_output.splitlines()[0], re.search(r"largest difference (\S+) of its bound", line)
    assert line == f"{agree}; {margin[0]}; 4.2 s; {full_output.count('note: ')} notes: run/parity/parity.html"
    assert float(margin[1]) == max(map(float, re.findall(r" float\d\d +\S+e-\d+ +(\S+)$", full_output, re.MULTILINE)))
    assert print_to_text(drift, True) == print_to_text(drift, False) and print_to_text(drift, True).startswith("DRIFT")


def test_a_page_shows_the_findings_if_nothing_could_be_compared():
    content = as_content(make_report_with_findings(Finding("tokenizer", "text 3", f"ids differ: {HOSTILE}")))
    page = ParsedPage(build_page(content))
    assert "Findings: 1" in page.words["h2"] and "ids differ" in page.words["td"]
    assert find_depth_charts(build_page(content)) == []


def test_findings_outside_the_table_come_first(drift):
    many = [Finding("semantics", t["name"], "drifts", "float64") for t in drift["tensors"]] * 20
    drift["findings"] += [vars(finding) for finding in many] + [vars(Finding("buckets", "buckets:last", "flips"))]
    text = build_page(drift)
    cells = re.findall(r'<th scope="row"><span class="name">(.*?)</span>', text)[: FINDINGS_SHOWN + 1]
    assert cells[:2] == [drift["culprit"]["name"], "buckets:last"]
    assert f"and {len(drift['findings']) - FINDINGS_SHOWN} more" in text


def test_a_single_dtype_has_only_its_own_curves():
    picture, _ = find_depth_charts(build_page(as_content(make_report(dtypes=("float64",)))))
    assert picture.curves.keys() == {"bound", "r32", "p64"}


def test_the_page_supports_screen_readers_and_dark_mode(drift):
    page = ParsedPage(build_page(drift))
    assert all(a.get("scope") in ("row", "col") for tag, a in page.elements if tag == "th")
    pictures = [a for tag, a in page.elements if tag == "svg" and a.get("role") == "img"]
    assert len(pictures) == 3 and all(p.words["title"] and p.words["desc"] for p in find_charts(build_page(drift)))
    assert ("html", {"lang": "en"}) in page.elements
    assert "prefers-color-scheme: dark" in page.words["style"] and "@media print" in page.words["style"]


def test_the_page_of_48_layers_is_small():
    parts = ("norm.weight", "norm.bias", "multi_head_attention.output_projection.weight", *map(str, range(29)))
    names = [f"{kind}:transformer.h.{n}.{part}" for kind in ("output", "gradient") for n in range(48) for part in parts]
    content = as_content(make_report(names=names, wrong=names[3]))
    assert len(content["tensors"]) > 6000
    assert len(build_page(content).encode()) < 3e6


# -- JUnit XML --------------------------------------------------------------------------------------------------------


def read_junit(content: dict) -> ElementTree.Element:
    """Check the structure and the counts that CI systems expect, and return the root."""
    root = ElementTree.fromstring(build_junit(content).encode("utf-8"))
    assert root.tag == "testsuites" and {suite.tag for suite in root} == {"testsuite"}
    for suite in root:
        cases = suite.findall("testcase")
        assert [child.tag for child in suite if child.tag != "testcase"] in ([], ["properties"])
        assert int(suite.get("tests")) == len(cases) > 0 and suite.get("errors") == "0"
        assert int(suite.get("failures")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped")) == len(suite.findall("testcase/skipped"))
        for case in cases:
            assert case.get("name") and case.get("classname").startswith("parity.")
            assert [child.tag for child in case] in ([], ["failure"], ["skipped"])
            assert all(child.get("message") for child in case)
    for key in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(key)) == sum(int(suite.get(key)) for suite in root)
    names = [suite.get("name") for suite in root]
    assert len(set(names)) == len(names)
    return root


def test_junit_has_the_counts_of_the_json(drift):
    root = read_junit(drift)
    suites = {suite.get("name"): suite for suite in root}
    for dtype, name in (("float64", "semantics float64"), ("float32", "rounding float32")):
        tensors = [tensor for tensor in drift["tensors"] if tensor["dtype"] == dtype]
        assert [case.get("name") for case in suites[name].iter("testcase")] == [tensor["name"] for tensor in tensors]
        assert int(suites[name].get("failures")) == sum(not tensor["passed"] for tensor in tensors)
        assert int(suites[name].get("skipped")) == sum(not tensor["informative"] for tensor in tensors)
        assert len(suites[f"recomputed {dtype}"]) == len(drift["recomputed"][dtype])
    assert int(root.get("failures")) == 1 + len(drift["findings"])  # the gate, and each finding
    skipped_case = suites["rounding float32"].find("testcase/skipped/..")
    assert skipped_case.get("name") == NOISY_GRADIENT and "float64 alone decides" in skipped_case.find("skipped").get(
        "message"
    )


def test_a_failure_has_its_figures(drift):
    root = read_junit(drift)
    suite = next(suite for suite in root if suite.get("name") == "semantics float64")
    failure = suite.find("testcase[@name='output:transformer.h.0.norm']/failure")
    assert re.search(r"error 1e-09, bound \S+; .*margin \d", failure.get("message"))
    assert failure.get("type") == "semantics"
    assert suite.find("testcase[@name='output:transformer.w']/failure") is None


def test_the_first_test_case_is_the_verdict_and_names_the_culprit(drift):
    gate = read_junit(drift)[0]
    assert gate.find("testcase/failure").get("message") == drift["summary"]
    facts = {property.get("name"): property.get("value") for property in gate.find("properties")}
    assert facts["culprit"] == "transformer.h.0.norm (LayerNorm, models/ctrl/modeling.py:7)"
    assert facts["versions.reference.torch"] == "2.0" and facts["seconds.gate"] == "4.250"
    passing_gate = read_junit(as_content(make_report()))
    assert passing_gate.get("failures") == "0"
    assert "culprit" not in {property.get("name") for property in passing_gate[0].find("properties")}


def test_findings_without_a_tensor_are_separate_failures():
    findings = [
        Finding("structure", "parameter:w", "the port does not have it", "float64"),
        Finding("tokenizer", "text 3", "ids differ"),
        Finding("a new verdict", "x", "is wrong", "float32"),
        Finding("recomputed", GRADIENTS[0], "off by 1e-3", "float32"),
    ]
    report = make_report()
    report.verdict.findings += findings
    report.culprit = findings[0]
    root = read_junit(as_content(report))
    suites = {suite.get("name"): suite for suite in root}
    assert {"structure float64", "tokenizer", "a new verdict float32"} <= set(suites)
    assert suites["tokenizer"].find("testcase").get("name") == "text 3"
    # The recomputed gradient already has a test case, which fails once.
    assert suites["recomputed float32"].get("tests") == str(len(GRADIENTS))
    assert suites["recomputed float32"].get("failures") == "1"
    assert root.get("failures") == str(1 + len(findings))


def test_no_character_of_a_name_breaks_the_xml():
    report = make_report_with_findings(Finding("tokenizer", f"text {HOSTILE}", HOSTILE + "\nnext line"))
    root = read_junit(as_content(report))
    case = root.find("testsuite[@name='tokenizer']/testcase")
    assert case.get("name").startswith('text <script>alert(1)</script>"') and "\\x1b[31m\\x00\\ud800" in case.get(
        "name"
    )
    assert case.find("failure").get("message").endswith("\nnext line")


# -- a gate -----------------------------------------------------------------------------------------------------------


def test_the_json_contains_all_data_of_the_page(drift):
    assert drift["schema"] == REPORT_SCHEMA == 4
    kinds = {tensor["name"]: tensor["kind"] for tensor in drift["tensors"]}
    assert kinds["loss"] == "loss" and kinds["output:transformer.w"] == "output" and kinds[NOISY_GRADIENT] == "gradient"
    noise = {tensor["name"]: tensor["noise"] for tensor in drift["tensors"]}
    assert noise["loss"] == 1e-7 and noise[NOISY_GRADIENT] == 1e3  # the largest of the runs
    reloaded_drift = json.loads(json.dumps(drift))
    assert build_page(reloaded_drift) == build_page(drift) and build_junit(reloaded_drift) == build_junit(drift)


@pytest.fixture(scope="module")
def gate(tmp_path_factory) -> tuple[Path, str]:
    """Return the folder with the files of a gate on a small CTRL, and its output, run in the parent folder."""
    working_dir = tmp_path_factory.mktemp("gate")
    config = part("ctrl", "schema").resolve(CTRL_TRIAL)
    weights = SyntheticWeights(config, "causal_lm", 0, "random", "ctrl")
    batch = random_batch(CTRL_TRIAL, "causal_lm", 1, 16, 0, "ctrl")
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(working_dir / "cache"))
        patch.chdir(working_dir)
        request = GateRequest("ctrl", "causal_lm", CTRL_TRIAL, weights, batch)
        run_gate(request, working_dir / "run" / "parity", Console(file=out, width=100))
    return working_dir / "run" / "parity", out.getvalue()


def test_a_gate_writes_its_reports_and_prints_their_path(gate, tmp_path):
    folder, output = gate
    assert {"parity.json", "parity.html", "junit.xml"} <= {path.name for path in folder.iterdir()}
    assert not list(folder.glob("*.partial"))
    assert (folder / "constants.safetensors").exists()
    outside = shutil.copytree(folder, tmp_path / "outside")
    remove_report(outside)
    assert not any(outside.iterdir())
    assert output.rstrip().endswith("curves and all tensors: run/parity/parity.html")


def test_the_reports_can_be_rebuilt_from_the_json(gate):
    folder, _ = gate
    content = json.loads((folder / "parity.json").read_text())
    assert (folder / "parity.html").read_text(encoding="utf-8") == build_page(content)
    assert (folder / "junit.xml").read_text(encoding="utf-8") == build_junit(content)


def test_the_json_is_strict_and_reports_handle_nonfinite_numbers(gate):
    text = (gate[0] / "parity.json").read_text()
    content = json.loads(text, parse_constant=pytest.fail)
    tensor = content["tensors"][0]
    tensor |= {key: math.nan for key in ("error", "error_max", "relative", "margin", "bound")} | {"passed": False}
    for name in content["recomputed"].get("float32", {}):
        content["recomputed"]["float32"][name] = math.inf
    strict = json.loads(dumps(content), parse_constant=pytest.fail)
    assert strict["tensors"][0]["error"] is None
    assert build_page(strict).count(tensor["name"]) >= 1
    suites = ElementTree.fromstring(build_junit(strict))
    assert suites.get("failures") == "1" and "error inf" in suites.find(".//failure").get("message")


def test_the_reports_contain_every_compared_tensor(gate):
    content = json.loads((gate[0] / "parity.json").read_text())
    assert content["passed"] and read_junit(content).get("failures") == "0"
    text = build_page(content)
    assert {(row[0], row[2]) for row in ParsedPage(text).rows[1:]} == {
        (t["name"], t["dtype"]) for t in content["tensors"]
    }
    kinds = ("trained", "updated", "updated loss", "learning_rate")
    of_training = {t["name"] for t in content["tensors"] if t["kind"] in kinds}
    of_backward = {t["name"] for t in content["tensors"] if t["kind"] == "gradient"}
    of_evaluation = {t["name"] for t in content["tensors"] if "/" in t["name"]}
    of_forward = {t["name"] for t in content["tensors"]} - of_training - of_backward - of_evaluation
    for picture, names in zip(
        find_depth_charts(text), (of_forward, of_backward, of_evaluation, of_training), strict=True
    ):
        assert len(picture.of_class("hover", "rect")) == len(names) > 10
        assert count_points(picture, "p64") == count_points(picture, "r32") == len(names)
    assert re.search("https?:", text) is None
