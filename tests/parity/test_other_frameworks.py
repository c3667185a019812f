"""Test ports in any framework that are judged by their tensors: saved tensors, a JAX file's, an ONNX graph's."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from toolkit.errors import UserError
from toolkit.parity.bundle.bundle import check_unchanged, open_recording
from toolkit.parity.gate import judge_outputs
from toolkit.parity.other_frameworks.run import run_port, write_inputs

REFERENCE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 8), nn.LayerNorm(8, eps=1e-5)
        self.square, self.out = nn.Linear(8, 8), nn.Linear(8, 5)
        self.dropout = nn.Dropout(0.2)

    def forward(self, ids, labels):
        x = self.norm(self.table(ids)).relu()
        return self.out(self.dropout(self.square(x)))


def build(config):
    return Model()


def batch(config, rng):
    return {"ids": rng.integers(0, 20, (4, 6)), "labels": rng.integers(0, 5, (4, 6))}
"""
#: The same model in a framework whose arrays are `np`: NumPy or JAX.
PORT = """
def forward(weights, batch, draws):
    x = weights["table.weight"][batch["ids"]]
    centered = x - x.mean(-1, keepdims=True)
    x = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weights["norm.weight"] + weights["norm.bias"]
    found = {"output:norm": x}
    x = np.maximum(x, 0) @ weights["square.weight"].T + weights["square.bias"]
    found["output:square"] = x
    if draws is not None:
        x = x * draws["dropout:dropout"].astype(x.dtype) / np.asarray(0.8, x.dtype)
    found["logits"] = logits = x @ weights["out.weight"].T + weights["out.bias"]
    if draws is not None:
        chosen = np.take_along_axis(logits, batch["labels"][..., None], -1)[..., 0]
        found["loss"] = (np.log(np.exp(logits).sum(-1)) - chosen).mean()
    return found
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Return a bundle of a reference that was recorded for ports in any framework."""
    return record_reference(tmp_path_factory.mktemp("recorded"), REFERENCE)


def record_reference(folder: Path, code: str) -> Path:
    from toolkit import cli

    (folder / "reference.py").write_text(code)
    request = ("parity", "record", "--any-framework", "--reference-model", str(folder / "reference.py"))
    with pytest.raises(SystemExit) as exit_error:
        cli.main([*request, "-o", str(folder / "bundle")])
    assert exit_error.value.code == 0
    return folder / "bundle"


def save_port_outputs(
    bundle: Path, folder: Path, code: str = PORT, ending: str = ".npz", dtypes=("float64", "float32")
) -> Path:
    """Run the port in NumPy and save its tensors."""
    folder.mkdir(exist_ok=True)
    names = {"np": np}
    exec(code, names)
    for dtype in dtypes:
        weights = {name: value.astype(dtype) for name, value in load_file(bundle / "weights.safetensors").items()}
        draws = load_file(bundle / "reference" / "draws-training.safetensors")
        tensors = names["forward"](weights, load_file(bundle / "batch.safetensors"), draws)
        tensors = {name: np.asarray(value, order="C") for name, value in tensors.items()}
        if ending == ".npz":
            np.savez(folder / f"{dtype}.npz", **tensors)
        else:
            save_file(tensors, folder / f"{dtype}.safetensors")
    return folder


def judge_port(bundle: Path, port: Path, folder: Path, command_line=None) -> tuple[object, str]:
    output = io.StringIO()
    report = judge_outputs(open_recording(bundle), port, folder / "report", Console(file=output, width=300), None, None)
    return report, output.getvalue()


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_saved_tensors_of_a_correct_port_pass_and_missing_tensors_are_reported(bundle, tmp_path, ending):
    report, output = judge_port(bundle, save_port_outputs(bundle, tmp_path / "given", ending=ending), tmp_path)
    assert output.startswith("PARITY 8 tensors of the port agree with the reference (float64, float32)")
    assert "saved tensors against torch" in output and "7 of gradient" in output
    assert "the port makes its own choices (signs under ReLU" in output
    content = json.loads((tmp_path / "report" / "parity.json").read_text())
    assert {tensor["name"] for tensor in content["tensors"]} == {"output:norm", "output:square", "logits", "loss"}
    assert (
        content["hashes"].keys() == {"bundle.json", f"float64{ending}", f"float32{ending}"} and report.exit_status == 0
    )


@pytest.mark.parametrize(
    "original_code, faulty_code, first_name",
    [
        ("1e-5", "1.001e-5", "output:norm"),
        ('weights["square.weight"].T', 'weights["square.weight"]', "output:square"),
        ("/ np.asarray(0.8, x.dtype)", "", "logits"),
        ("- chosen).mean()", "- chosen)[:, 1:].mean()", "loss"),
    ],
)
def test_the_first_wrong_tensor_of_a_faulty_port_is_named(bundle, tmp_path, original_code, faulty_code, first_name):
    assert PORT.count(original_code) == 1
    report, output = judge_port(
        bundle, save_port_outputs(bundle, tmp_path / "given", PORT.replace(original_code, faulty_code)), tmp_path
    )
    assert output.startswith(f"DRIFT {first_name}\n") and report.exit_status == 1


def test_float32_alone_is_judged_with_a_note_on_small_faults(bundle, tmp_path):
    report, output = judge_port(bundle, save_port_outputs(bundle, tmp_path / "given", dtypes=["float32"]), tmp_path)
    assert report.passed and "a fault smaller than the reference's own rounding is not seen" in output


def test_another_shape_is_a_finding(bundle, tmp_path):
    code = PORT.replace("- chosen).mean()", "- chosen).mean()[None]")
    report, output = judge_port(bundle, save_port_outputs(bundle, tmp_path / "given", code), tmp_path)
    assert not report.passed and "shape [1], the reference's is []" in output


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda given: shutil.rmtree(given) or given.mkdir(), "holds no tensors of a port; save them as float64.safet"),
        (lambda given: (given / "float64.npz").write_bytes(b"PK"), "float64.npz: cannot be read: "),
        (lambda given: np.savez(given / "float64.npz", logit=np.zeros(3)), "the reference has no logit; it has logits"),
        (
            lambda given: np.savez(given / "float64.npz", loss=np.zeros((), "f4")),
            "loss is float32; compute and save it",
        ),
        (
            lambda given: np.savez(given / "float64.npz", loss=np.array([None])),
            "float64.npz: cannot be read: loss holds Python objects, which are not opened",
        ),
        (lambda given: np.savez(given / "float64.npz"), "float64.npz: holds no tensor"),
        (lambda given: save_file({"a": np.zeros(2)}, given / "float64.safetensors"), "remove one of them"),
    ],
)
def test_invalid_tensors_are_reported_in_one_line(bundle, tmp_path, command_line, spoil, message):
    spoil(save_port_outputs(bundle, tmp_path / "given"))
    status, _, err = command_line("parity", "judge", bundle, tmp_path / "given", "--output", tmp_path / "report")
    assert status == 2 and err.startswith(f"error: {tmp_path / 'given'}") and message in err and err.count("\n") == 1


def make_npy_file(text: str, values: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Return a file of `numpy.save` with an arbitrary header."""
    header = text.encode().ljust(117) + b"\n"
    size = len(header).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + header + values


def make_npy_file_of_shape(shape: str, values: bytes = b"", dtype: str = "<f8", is_fortran: bool = False) -> bytes:
    return make_npy_file(f"{{'descr': '{dtype}', 'fortran_order': {is_fortran}, 'shape': {shape}}}", values)


def make_archive_writer(
    content: bytes, name: str = "loss.npy", compression: int = zipfile.ZIP_STORED
) -> Callable[[Path], None]:
    """Return a function that writes an archive with one member."""

    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr(name, content)

    return write


def make_safetensors_writer(header: str, size: int | None = None) -> Callable[[Path], None]:
    """Return a function that writes a safetensors file with an arbitrary header and 8 bytes of values."""

    def write(path: Path) -> None:
        text = header.encode()
        path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + bytes(8))

    return write


def make_loss_writer(shape: str, offsets: str) -> Callable[[Path], None]:
    return make_safetensors_writer(f'{{"loss": {{"dtype": "F64", "shape": {shape}, "data_offsets": {offsets}}}}}')


NPZ, SAFETENSORS = "float64.npz", "float64.safetensors"
HOSTILE = {
    "terabytes": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("(10000000000000,)", bytes(8))),
        "loss has 136 bytes, and its shape",
    ),
    "negative": (NPZ, make_archive_writer(make_npy_file_of_shape("(-1,)", bytes(8))), "loss has the shape (-1,)"),
    "bool": (NPZ, make_archive_writer(make_npy_file_of_shape("(True,)", bytes(8))), "loss has the shape (True,)"),
    "no shape": (NPZ, make_archive_writer(make_npy_file_of_shape("None", bytes(8))), "shape is not valid: None"),
    "cut header": (NPZ, make_archive_writer(make_npy_file("{'descr': '<f8', ")), "cannot be read: "),
    "cut values": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("()", bytes(7))),
        "loss has 135 bytes, and its shape ()",
    ),
    "objects": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("()", b"cos\nsystem\n", "|O")),
        "holds Python objects, which are not",
    ),
    "long header": (
        NPZ,
        make_archive_writer(make_npy_file("", version=b"\x02\x00")),
        "is of version (2, 0) of NumPy's format",
    ),
    "no array": (NPZ, make_archive_writer(b"hello"), "cannot be read: "),
    "no member": (NPZ, make_archive_writer(b"hello", "loss"), "it holds loss, which is no array of numpy.savez"),
    "outside": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("()", bytes(8)), "../loss.npy"),
        "the reference has no ../loss",
    ),
    "compression": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("()", bytes(8)), compression=zipfile.ZIP_LZMA),
        "or compressed as",
    ),
    "one array": (
        NPZ,
        lambda path: path.write_bytes(make_npy_file_of_shape("()", bytes(8))),
        "it is one array of numpy.save",
    ),
    "folder": (NPZ, Path.mkdir, "is a folder, not a file"),
    "pipe": (NPZ, os.mkfifo, "is no plain file"),
    "device": (NPZ, lambda path: path.symlink_to("/dev/zero"), "is no plain file"),
    "offsets": (SAFETENSORS, make_loss_writer("[]", "[0, 1000000000000]"), "cannot be read: "),
    "shape": (SAFETENSORS, make_loss_writer("[4611686018427387904, 8]", "[0, 8]"), "cannot be read: "),
    "size of header": (SAFETENSORS, make_safetensors_writer("{}", 2**63), "cannot be read: "),
    "dimensions": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape(f"({'1,' * 33})", bytes(8))),
        "loss has 33 dimensions; 32 are the",
    ),
    "header of Python 2": (
        NPZ,
        make_archive_writer(make_npy_file_of_shape("(2L,)", bytes(8))),
        "loss has 136 bytes, and its shape (2,)",
    ),
    "safetensors pipe": (SAFETENSORS, os.mkfifo, "is no plain file"),
}


@pytest.mark.filterwarnings("error:Reading")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_reported_in_one_line(name, bundle, tmp_path, command_line):
    file, write, message = HOSTILE[name]
    write(tmp_path / file)
    status, _, err = command_line("parity", "judge", bundle, tmp_path, "--output", tmp_path / "report")
    assert status == 2 and err.startswith(f"error: {tmp_path / file}: ") and message in err and err.count("\n") == 1, (
        err
    )


def test_values_of_a_wrong_shape_are_not_read(bundle, tmp_path, monkeypatch):
    """A small archive can expand to gigabytes."""
    make_archive_writer(make_npy_file_of_shape("(4194304,)", bytes(2**25)), compression=zipfile.ZIP_DEFLATED)(
        tmp_path / NPZ
    )
    read = []
    original = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, count=-1: read.append(count) or original(self, count))
    _, output = judge_port(bundle, tmp_path, tmp_path)
    assert output.startswith("DRIFT loss") and "shape [4194304], the reference's is []" in output
    assert 0 < max(read) < 2**16 and min(read) >= 0


@pytest.mark.parametrize("is_fortran", [False, True])
def test_arrays_in_both_memory_orders_are_read_correctly(is_fortran, bundle, tmp_path):
    value = load_file(bundle / "reference" / "float64.safetensors")["output:norm"]
    values = value.tobytes(order="F" if is_fortran else "C")
    make_archive_writer(make_npy_file_of_shape(str(value.shape), values, is_fortran=is_fortran), "output:norm.npy")(
        tmp_path / NPZ
    )
    assert judge_port(bundle, tmp_path, tmp_path)[0].passed
    make_archive_writer(make_npy_file_of_shape(str(value.shape), values, is_fortran=not is_fortran), "output:norm.npy")(
        tmp_path / NPZ
    )
    assert not judge_port(bundle, tmp_path, tmp_path)[0].passed


def test_a_bundle_for_paddle_and_an_invalid_port_are_reported_in_one_line(bundle, tmp_path, command_line):
    recording = open_recording(bundle)
    pair = replace(recording.request.pair, any_framework=False)
    for_paddle = replace(recording, request=replace(recording.request, pair=pair))
    with pytest.raises(UserError, match="is recorded for a port in Paddle; record it again with --any-framework"):
        judge_outputs(for_paddle, tmp_path, tmp_path / "report", Console(file=io.StringIO()), None, None)
    (tmp_path / "port.txt").write_text("x")
    for name, message in (("port.txt", "is no folder of tensors, no .py file"), ("none", "is not there")):
        status, _, err = command_line("parity", "judge", bundle, tmp_path / name)
        assert status == 2 and message in err
    (tmp_path / "port.py").write_text("def build(config): ...")
    status, _, err = command_line("parity", "replay", bundle, "--port", tmp_path / "port.py")
    assert status == 2 and "is recorded --any-framework" in err


@pytest.mark.slow
def test_a_jax_port_is_judged_with_its_gradients(bundle, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "port.py").write_text(f"import jax.numpy as np\n{PORT}")
    report, output = judge_port(bundle, tmp_path / "port.py", tmp_path)
    assert output.startswith("PARITY 22 tensors of the port agree") and "jax 0." in output and report.passed
    (tmp_path / "port.py").write_text("import jax.numpy as np\n" + PORT.replace("x = np.max", "x = 1.00001 * np.max"))
    report, output = judge_port(bundle, tmp_path / "port.py", tmp_path)
    assert output.startswith("DRIFT output:square") and "gradient:norm.weight" in output


@pytest.mark.parametrize(
    "code, message",
    [
        ("x = 1", "has no forward(weights, batch, draws)"),
        ("def forward(weights, batch, draws):\n    return weights['x']", "line 2: KeyError: 'x'"),
        pytest.param(
            "def forward(weights, batch, draws):\n    return {}",
            "TypeError: forward returned no arrays; return a dict of name -> array, such as {'loss': loss}",
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                "import sys, threading, time\n\ndef forward(weights, batch, draws):\n"
                f"    threading.Thread(target=time.sleep, args=(3600,)).start()\n    {ending}",
                reason,
                marks=pytest.mark.slow,
                id=f"a thread stays and {ending}",
            )
            for ending, reason in (
                ("raise ValueError(2)", "line 5: ValueError: 2"),
                ("sys.exit('bye')", "has ended without a result in float64 (exit status 1); it printed last: bye"),
            )
        ),
        (
            "import sys\n\ndef forward(weights, batch, draws):\n    print('bye')\n    sys.exit(3)",
            "has ended without a result in float64 (exit status 3); it printed last: bye",
        ),
        pytest.param(
            "import os\n\ndef forward(weights, batch, draws):\n    os._exit(0)",
            "has ended without a result in float64 (exit status 0)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import os, sys\n\ndef forward(weights, batch, draws):\n"
            "    os.mkfifo(sys.argv[3] + '/versions.json')\n    os._exit(0)",
            "has ended without a result in float64 (exit status 0)",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import os, sys\n\ndef forward(weights, batch, draws):\n"
            "    open(sys.argv[3] + '/versions.json', 'w').write('{\"jax\": \"1\"}')\n    os._exit(0)",
            "has computed no tensor in float64 or float32",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import os, sys\n\ndef forward(weights, batch, draws):\n"
            "    open(sys.argv[3] + '/versions.json', 'w').write('[' * 100_000)\n    os._exit(0)",
            "has ended without a result in float64 (exit status 0)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_error_of_a_jax_port_is_one_line_with_its_place(bundle, tmp_path, command_line, code, message):
    pytest.importorskip("jax")
    (tmp_path / "port.py").write_text(code)
    status, _, err = command_line("parity", "judge", bundle, tmp_path / "port.py", "--output", tmp_path / "report")
    assert status == 2 and err == f"error: {tmp_path / 'port.py'}: {message}\n"


NOT_THERE = """
import sys
from pathlib import Path

def forward(weights, batch, draws):
    folders = [path for path in map(Path, sys.argv) if path.is_dir()]
    found = sorted(path.name for folder in folders for path in folder.rglob("*"))
    raise ValueError(" ".join(found))
"""


def test_a_jax_port_receives_weights_batch_and_draws_but_no_results(bundle, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "port.py").write_text(NOT_THERE)
    with pytest.raises(UserError, match=r"ValueError: batch\.safetensors draws\.safetensors names\.json weights\."):
        judge_port(bundle, tmp_path / "port.py", tmp_path)
    recording = open_recording(bundle)
    write_inputs(recording, tmp_path / "inputs")
    port_inputs, reference_draws = (
        load_file(path)
        for path in (tmp_path / "inputs" / "draws.safetensors", bundle / "reference" / "draws-training.safetensors")
    )
    assert {name.partition(":")[0] for name in port_inputs} == {"dropout", "relu"}
    assert {name.partition(":")[0] for name in reference_draws} == {
        "dropout",
        "relu",
        "input",
    }  # the inputs of ReLUs in R64


def test_a_bundle_that_changes_while_a_port_runs_is_rejected(bundle, tmp_path):
    bundle_copy = Path(shutil.copytree(bundle, tmp_path / "copied"))
    recording = open_recording(bundle_copy)
    check_unchanged(recording)
    truth = bundle_copy / "reference" / "float64.safetensors"
    truth.write_bytes(truth.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"float64\.safetensors was changed"):
        check_unchanged(recording)
    manifest = json.loads((bundle_copy / "bundle.json").read_text())
    (bundle_copy / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"bundle\.json was changed while the port ran"):
        check_unchanged(recording)


def test_a_port_in_jax_does_not_find_the_bundle_in_the_folder_of_the_caller(bundle, tmp_path, monkeypatch):
    """It starts in an empty folder, and its environment, arguments and path of modules do not name the caller's."""
    pytest.importorskip("jax")
    monkeypatch.chdir(bundle.parent)
    monkeypatch.setenv("PWD", str(bundle.parent))
    monkeypatch.setenv("OLDPWD", str(bundle))
    (tmp_path / "port.py").write_text(
        "import json, os, sys\n\ndef forward(weights, batch, draws):\n"
        "    facts = os.listdir(), list(os.environ.values()) + sys.argv + sys.path\n"
        "    with open(os.path.join(os.path.dirname(__file__), 'facts.json'), 'w') as file:\n"
        "        json.dump(facts, file)\n"
        "    return {}\n"
    )
    (tmp_path / "scratch").mkdir()
    recording = open_recording(Path(bundle.name))
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "")
    with pytest.raises(UserError):
        run_port(tmp_path / "port.py", recording, tmp_path / "scratch", ["float64"], None, None)
    files, places = json.loads((tmp_path / "facts.json").read_text())
    assert files == [] and not [place for place in places if str(bundle.parent) in place]


STAYING = """
import os, subprocess, sys, time
import jax.numpy as np

def start():
    {start}

def forward(weights, batch, draws):
    start()
    return {{"output:norm": np.zeros((4, 6, 8), weights["norm.weight"].dtype)}}
"""
STARTS = {
    "fork": "os.fork() == 0 and time.sleep(3600)",
    "session": "os.fork() == 0 and (os.setsid(), time.sleep(3600))",
    "daemon": "os.fork() == 0 and (os.setsid(), os.fork() and os._exit(0), time.sleep(3600))",
    "program": "subprocess.Popen(['sh', '-c', 'sleep 3600; :', sys.argv[2]], start_new_session=True)",
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_remaining_child_processes_of_a_port_are_ended(start, bundle, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "port.py").write_text(STAYING.format(start=start))
    assert judge_port(bundle, tmp_path / "port.py", tmp_path)[1].startswith("DRIFT output:norm")
    child_processes = [
        path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path / "port.py") in read_command(path)
    ]
    assert not child_processes


def read_command(path: Path) -> str:
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        return path.read_text()
    return ""


FROZEN_LAYER_REFERENCE = """
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.first.requires_grad_(False)

    def forward(self, x):
        return self.head(self.first(x))


def build(config):
    return Model()


def batch(config, rng):
    return {"x": rng.normal(size=(5, 6)), "labels": rng.integers(0, 3, 5)}


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
"""
PORT_OF_FROZEN = """
import jax
import jax.numpy as np

def forward(weights, batch, draws):
    x = batch["x"] @ weights["first.weight"].T + weights["first.bias"]
    logits = x @ weights["head.weight"].T + weights["head.bias"]
    chosen = np.take_along_axis(jax.nn.log_softmax(logits, -1), batch["labels"][:, None], -1)
    return {"output:head": logits, "logits": logits, "loss": -chosen.mean()}
"""


@pytest.mark.slow
def test_a_frozen_layer_and_the_logits_of_a_file_with_its_own_loss_are_compared(tmp_path):
    pytest.importorskip("jax")
    bundle = record_reference(tmp_path, FROZEN_LAYER_REFERENCE)
    (tmp_path / "port.py").write_text(PORT_OF_FROZEN)
    report, output = judge_port(bundle, tmp_path / "port.py", tmp_path)
    assert (
        output.startswith("PARITY 10 tensors of the port agree") and report.passed
    )  # logits, loss, output, two gradients
    (tmp_path / "port.py").write_text(PORT_OF_FROZEN.replace("-chosen.mean()", "-chosen.sum()"))
    report, output = judge_port(bundle, tmp_path / "port.py", tmp_path)
    assert output.startswith("DRIFT loss")


def write_onnx_graph(path: Path, epsilon: float, output: str = "logits") -> None:
    """Write the port in evaluation mode as a graph whose weights are inputs."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Gather", ["table.weight", "ids"], ["x"]),
        helper.make_node("LayerNormalization", ["x", "norm.weight", "norm.bias"], ["n"], epsilon=epsilon),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Transpose", ["square.weight"], ["st"]),
        helper.make_node("MatMul", ["r", "st"], ["s"]),
        helper.make_node("Add", ["s", "square.bias"], ["b"]),
        helper.make_node("Transpose", ["out.weight"], ["ot"]),
        helper.make_node("MatMul", ["b", "ot"], ["o"]),
        helper.make_node("Add", ["o", "out.bias"], [output]),
    ]
    shapes = {"table.weight": [20, 8], "norm.weight": [8], "norm.bias": [8], "square.weight": [8, 8],
              "square.bias": [8], "out.weight": [5, 8], "out.bias": [5]}  # fmt: skip
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    inputs.append(helper.make_tensor_value_info("ids", TensorProto.INT64, [4, 6]))
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, [4, 6, 5])]
    graph = helper.make_graph(nodes, "port", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_an_onnx_graph_is_judged_against_the_reference_in_evaluation_mode(bundle, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    write_onnx_graph(tmp_path / "port.onnx", 1e-5)
    report, output = judge_port(bundle, tmp_path / "port.onnx", tmp_path)
    assert output.startswith("PARITY 1 tensors of the port agree") and "onnxruntime 1." in output and report.passed
    write_onnx_graph(tmp_path / "port.onnx", 2e-5, "fetch_name_0")
    with pytest.raises(UserError, match=r"port\.onnx: the reference has no fetch_name_0; it has .*logits, loss"):
        judge_port(bundle, tmp_path / "port.onnx", tmp_path)
    (tmp_path / "export.json").write_text('{"outputs": {"fetch_name_0": "logits"}}')
    report, output = judge_port(bundle, tmp_path / "port.onnx", tmp_path)
    assert output.startswith("DRIFT logits\n") and "in evaluation mode (evaluation/logits)" in output
