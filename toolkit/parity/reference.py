"""The reference worker: one train-mode step of the `transformers` model on PyTorch. The only file that imports torch.

Run as ``python -m toolkit.parity.reference JOB``, by any interpreter that has torch, transformers, numpy and
safetensors. It runs the step in float64 (R64, the truth), writes down every random draw that the step made, and
repeats it in float32 with the same draws, several times with the weights moved by one unit in the last place: how far
these runs lie from R64 is the yardstick by which the port is judged (PARITY.md, "The verdicts").

The reference is run clean. What it does in float32 although the model is float64 is done in float64 instead, and the
gradients are those of plain autograd: its reversible backward, which loses digits, is bypassed.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import platform
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.overrides import TorchFunctionMode
from transformers.models.reformer import modeling_reformer

from toolkit.parity import bundle, worker
from toolkit.parity.draws import ModuleStack

#: The reference's class for each head.
HEADS = {
    "sequence_classification": modeling_reformer.ReformerForSequenceClassification,
    "causal_lm": modeling_reformer.ReformerModelWithLMHead,
    "masked_lm": modeling_reformer.ReformerForMaskedLM,
}

DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Draws:
    """Every random draw of R64 by name, made once from NumPy and then repeated: masks, rotations, bucket choices."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tensors: dict[str, np.ndarray] = {}
        self.rates: dict[str, float] = {}

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        """Which cells are kept (1) and dropped (0), as uint8."""
        if name not in self.tensors:
            self.tensors[name] = (self._generator(name).random(shape) >= p).astype(np.uint8)
            self.rates[name] = p
        return self.tensors[name]

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Standard normal numbers in float32."""
        if name not in self.tensors:
            self.tensors[name] = self._generator(name).standard_normal(shape).astype(np.float32)
        return self.tensors[name]

    def _generator(self, name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}:{name}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


class Recorder:
    """Watches one run of the model: names its draws and outputs, and hands each output to ``keep``.

    Args:
        model: the reference model.
        draws: where draws come from.
        keep: called with (name, tensor) for every output, in execution order.
    """

    def __init__(self, model: torch.nn.Module, draws: Draws, keep) -> None:
        self.model = model
        self.draws = draws
        self.keep = keep
        self.stack = ModuleStack()
        self.embedded: torch.Tensor | None = None
        self.bucket_flips: dict[str, int] = {}
        self.recording = True

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Hooks and injected draws are in force inside the ``with`` block."""
        undo = []
        for name, module in self.model.named_modules():
            undo.append(module.register_forward_pre_hook(self._entered(name)).remove)
            undo.append(module.register_forward_hook(self._left(name), always_call=True).remove)
            if isinstance(module, modeling_reformer.LSHSelfAttention):
                undo.append(_replace(module, "_hash_vectors", self._buckets(name, module)))
        functional = torch.nn.functional
        undo.append(_replace(functional, "dropout", self._dropout))
        undo.append(_replace(functional, "dropout2d", self._dropout2d))
        undo.append(_replace(torch, "randn", self._randn))
        try:
            yield
        finally:
            for restore in reversed(undo):
                restore()

    def _entered(self, name: str):
        def hook(module, args) -> None:
            self.stack.enter(name)

        return hook

    def _left(self, name: str):
        def hook(module, args, output) -> None:
            called = self.stack.leave()
            if output is None or not self.recording:
                return
            tensor = first_tensor(output)
            if tensor is None or name == "":
                return
            if isinstance(module, modeling_reformer.ReformerEmbeddings):
                self.embedded = tensor
                if tensor.requires_grad:
                    tensor.retain_grad()
            self.keep(called, tensor)

        return hook

    def _dropout(self, x, p=0.5, training=True, inplace=False):
        return self._dropped(x, p, training, tuple(x.shape))

    def _dropout2d(self, x, p=0.5, training=True, inplace=False):
        return self._dropped(x, p, training, tuple(x.shape[:2]) + (1,) * (x.ndim - 2))

    def _dropped(self, x, p, training, mask_shape):
        if not training or p == 0.0:
            return x
        mask = self.draws.mask(self.stack.draw("dropout"), mask_shape, p)
        return x * (torch.from_numpy(mask).to(x) / (1.0 - p))

    def _randn(self, shape, **options):
        drawn = self.draws.normal(self.stack.draw("normal"), tuple(shape))
        return torch.from_numpy(drawn).to(dtype=options.get("dtype"), device=options.get("device"))

    def _buckets(self, name: str, module):
        """In place of ``_hash_vectors``: R64's choice is written down with its margins, and all others are given it."""
        original = module._hash_vectors

        def choose(vectors, num_hashes, attention_mask, *args, **kwargs):
            own = original(vectors, num_hashes, attention_mask, *args, **kwargs)
            key = f"buckets:{name}"
            if key not in self.draws.tensors:
                rotations = self.draws.tensors[f"normal:{name}"]
                self.draws.tensors[key] = own.numpy(force=True).astype(np.int32)
                self.draws.tensors[f"margin:{name}"] = margins(vectors.detach(), rotations, module.num_buckets)
            chosen = torch.from_numpy(self.draws.tensors[key]).to(own)
            self.bucket_flips[name] = int((own != chosen).sum())
            return chosen

        return choose


def margins(vectors: torch.Tensor, rotations: np.ndarray, num_buckets) -> np.ndarray:
    """By how much each position's best bucket beats the second best: float64 (B, H, R*T).

    Where the bucket count is factorised, the smaller of the factors' margins.
    """
    rotated = torch.einsum("bhtd,hdrk->bhrtk", vectors, torch.from_numpy(rotations).to(vectors))
    smallest = None
    below = 0
    for factor in [num_buckets] if isinstance(num_buckets, int) else num_buckets:
        part = rotated[..., below : below + factor // 2]
        below += factor // 2
        best = torch.cat([part, -part], -1).topk(2, dim=-1).values
        margin = best[..., 0] - best[..., 1]
        smallest = margin if smallest is None else torch.minimum(smallest, margin)
    return smallest.flatten(2).double().numpy(force=True)


def bucket_slack(draws: dict[str, np.ndarray], records: dict[str, dict]) -> dict[str, float]:
    """For each LSH attention, how small a margin rounding can turn around in float32.

    A rotated vector's component is a sum over the head's dimensions: the vectors' own error (as measured between R32
    and R64) times the length of a rotation's column, and the rounding of the sum. A margin is the difference of two.
    """
    slack = {}
    for name in (key.partition(":")[2] for key in draws if key.startswith("buckets:")):
        rotations = draws[f"normal:{name}"].astype(np.float64)  # (H, D, R, half)
        column = float(np.sqrt((rotations**2).sum(1)).max())
        vectors = records[f"output:{name}.query_key"]
        inherited = max(vectors["noise"]["float32"]) * column
        rounding = 2.0**-24 * np.sqrt(rotations.shape[1]) * vectors["max"] * column
        slack[name] = 2 * 8 * (inherited + float(rounding))
    return slack


def first_tensor(output):
    """The tensor that a module's output is compared by: itself, or the first of a tuple or model output."""
    if isinstance(output, torch.Tensor):
        return output
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return next((value for value in values if isinstance(value, torch.Tensor)), None)


def _replace(owner, name: str, value):
    """Set an attribute; returns a function that undoes it."""
    had, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before) if had else delattr(owner, name)


@contextlib.contextmanager
def plain_autograd(recorder: Recorder) -> Iterator[None]:
    """Run the layers one after another under autograd, in place of the reference's reversible function, and record the
    two residual streams after each layer."""
    function = modeling_reformer._ReversibleFunction
    names = list(inspect.signature(function.forward).parameters)[1:]

    def apply(*values):
        arguments = dict(zip(names, values, strict=True))
        attention_stream, hidden_stream = torch.chunk(arguments["hidden_states"], 2, dim=-1)
        for index, layer in enumerate(arguments["layers"]):
            attention = layer.attention(
                hidden_states=hidden_stream,
                attention_mask=arguments["attention_mask"],
                num_hashes=arguments["num_hashes"],
            )
            attention_stream = attention_stream + attention.hidden_states
            hidden_stream = hidden_stream + layer.feed_forward(attention_stream)
            recorder.keep(f"stream:reformer.encoder.layers.{index}#attention", attention_stream)
            recorder.keep(f"stream:reformer.encoder.layers.{index}#hidden", hidden_stream)
        return torch.cat([attention_stream, hidden_stream], dim=-1)

    undo = _replace(function, "apply", apply)
    try:
        yield
    finally:
        undo()


@contextlib.contextmanager
def no_downcast() -> Iterator[list[str]]:
    """Float64 stays float64 where the reference's code says ``.float()`` (its language-model loss does). Gives a list
    that fills with the places where that happened: leaks of the reference, to be reported as such."""
    leaks: list[str] = []
    original = torch.Tensor.float

    def keep_double(tensor, *args, **kwargs):
        if tensor.dtype != torch.float64:
            return original(tensor, *args, **kwargs)
        caller = sys._getframe(1)
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        if place not in leaks:
            leaks.append(place)
        return tensor

    undo = _replace(torch.Tensor, "float", keep_double)
    try:
        yield leaks
    finally:
        undo()


class ExactNormaliser(TorchFunctionMode):
    """Compute x - logsumexp(x) as (x - max) - log(sum(exp(x - max))) wherever the reference subtracts the former.

    The reference's softmax is exp(x - logsumexp(x)). Where every score of a row is masked, logsumexp(x) is -1e9 +
    log(K), and at -1e9 float64 keeps 7 digits of log(K), float32 none: each of the K weights becomes 1 and not 1/K.
    The positions concerned see nothing but padding, so no result depends on them; but a truth that is wrong by 1e-7
    there is none, and a yardstick of 100% measures nothing. Measured on the demo recipe: without this, a right port
    stood at twice the semantic bound.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.saturated = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.logsumexp:
            normaliser = function(*args, **kwargs)
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            largest = scores.detach().amax(dim, keepdim=True)
            self.saturated += int((largest < -1e4).sum())
            rest = (scores - largest).exp().sum(dim, keepdim=True).log()
            self.parts[id(normaliser)] = (normaliser, largest, rest)
            return normaliser
        if function in (torch.Tensor.sub, torch.Tensor.__sub__, torch.sub) and id(args[1]) in self.parts:
            _, largest, rest = self.parts[id(args[1])]
            return (args[0] - largest) - rest
        return function(*args, **kwargs)


class Step:
    """One train-mode step of the reference, in a dtype."""

    def __init__(self, job: dict, weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> None:
        self.batch = {name: torch.from_numpy(value) for name, value in batch.items()}
        config = transformers.ReformerConfig(**{**job["config"], "use_cache": False})
        self.model = HEADS[job["head"]](config)
        self.weights = {name: torch.from_numpy(value) for name, value in weights.items()}
        self.device = torch.device("cuda" if job["device"] == "gpu" else "cpu")
        self.draws = Draws(job["seed"])
        self.leaks: list[str] = []
        self.saturated = 0

    def load(self, dtype: torch.dtype, nudge: int = 0) -> None:
        """Put the weights into the model; ``nudge`` > 0 moves each by one unit in the last place of ``dtype``, up or
        down by a draw that differs with the number."""
        values = {name: value.to(dtype) for name, value in self.weights.items()}
        if nudge:
            values = {name: _nudged(value, nudge) for name, value in values.items()}
        self.model.to(dtype=dtype)
        for alias, name in (("lm_head.decoder.bias", "lm_head.bias"),):
            if alias in self.model.state_dict():
                values = {**values, alias: values[name]}
        self.model.load_state_dict(values, strict=True)
        self.model.to(device=self.device)

    def run(self, dtype: str, keep, nudge: int = 0, reversible: bool = False) -> Recorder:
        """Forward and backward; every output, the loss, the logits and every gradient go to ``keep`` (name, array)."""
        self.load(DTYPES[dtype], nudge)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        recorder = Recorder(self.model, self.draws, lambda name, value: keep(name, _numpy(value)))
        layers = contextlib.nullcontext() if reversible else plain_autograd(recorder)
        with no_downcast() as leaks, recorder.watch(), layers, ExactNormaliser() as normaliser:
            output = self.model(**{name: value.to(self.device) for name, value in self.batch.items()})
            keep("logits", _numpy(output.logits))
            keep("loss", _numpy(output.loss))
            recorder.recording = False
            output.loss.backward()
        self.leaks, self.saturated = leaks, normaliser.saturated
        if recorder.embedded is not None and recorder.embedded.grad is not None:
            keep("gradient:reformer.embeddings", _numpy(recorder.embedded.grad))
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                keep(f"gradient:{name}", _numpy(parameter.grad))
        return recorder


def _nudged(value: torch.Tensor, nudge: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(nudge)
    up = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.bool)
    infinity = torch.full_like(value, torch.inf)
    return torch.nextafter(value, torch.where(up, infinity, -infinity))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def main(folder: Path) -> None:
    """Run the job in ``folder`` (see :mod:`.bundle`)."""
    started = time.monotonic()
    job = bundle.read_json(folder / "job.json")
    torch.set_num_threads(job["threads"])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    transformers.logging.set_verbosity_error()
    step = Step(
        job, bundle.read_tensors(folder / "weights.safetensors"), bundle.read_tensors(folder / "batch.safetensors")
    )

    truth: dict[str, np.ndarray] = {}

    def keep(name: str, value: np.ndarray) -> None:
        if name in truth:
            raise RuntimeError(f"two tensors of the reference have the name {name}: one would not be compared")
        truth[name] = value

    step.run("float64", keep)
    place = folder / "reference"
    bundle.write_tensors(place / "draws.safetensors", step.draws.tensors)
    bundle.write_tensors(place / "float64.safetensors", truth)
    bundle.write_json(place / "rates.json", step.draws.rates)
    bundle.write_json(place / "order.json", list(truth))  # the Paddle worker starts when this file is there
    records = {name: {**bundle.describe(value), "noise": {}, "noise_max": {}} for name, value in truth.items()}
    flips = measure_noise(step, truth, records, job["noise_runs"])
    result = {
        "schema": bundle.SCHEMA,
        "tensors": records,
        "parameters": {name: list(value.shape) for name, value in step.model.named_parameters()},
        "buffers": [name for name, _ in step.model.named_buffers()],
        "num_buckets": step.model.config.num_buckets,
        "flips": flips,
        "bucket_slack": bucket_slack(step.draws.tensors, records),
        "leaks": step.leaks,
        "saturated_rows": step.saturated,
        "unhooked": unhooked_difference(step, truth),
        "reversible": reversible_error(step, truth) if job["judge_reference_reversible"] else None,
        "tokens": tokens(job["tokenizer"]) if job["tokenizer"] else None,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "seconds": time.monotonic() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    bundle.write_json(place / "result.json", result)


def measure_noise(step: Step, truth: dict, records: dict, runs: dict[str, int]) -> list[dict[str, int]]:
    """Run the reference ``runs[dtype]`` times in each dtype and add each tensor's distance from R64 to its record.

    In float32 the first run has the weights as they are, the others have them moved by one unit in the last place of
    float32. In float64 all have them moved by one unit of float64: where float32's error has grown as large as the
    tensor, it says no more how much float64's grows, and this says it.

    Returns:
        For each float32 run, how many buckets it would have chosen differently from R64, by module.
    """
    flips = []
    for dtype, count in runs.items():
        for record in records.values():
            record["noise"][dtype], record["noise_max"][dtype] = [], []

        def measure(name: str, value: np.ndarray, dtype: str = dtype) -> None:
            error = bundle.difference(value, truth[name])
            records[name]["noise"][dtype].append(error["rms"])
            records[name]["noise_max"][dtype].append(error["max"])

        for run in range(count):
            recorder = step.run(dtype, measure, nudge=run + (dtype == "float64"))
            if dtype == "float32":
                flips.append(recorder.bucket_flips)
    return flips


def unhooked_difference(step: Step, truth: dict[str, np.ndarray]) -> float:
    """|loss of a float64 run without the output hooks - loss of the recorded run|: 0 where watching changes nothing."""
    step.load(torch.float64)
    recorder = Recorder(step.model, step.draws, lambda name, value: None)
    recorder.recording = False
    with torch.no_grad(), no_downcast(), recorder.watch(), plain_autograd(recorder), ExactNormaliser():
        output = step.model(**{name: value.to(step.device) for name, value in step.batch.items()})
    return abs(float(output.loss) - float(truth["loss"]))


def reversible_error(step: Step, truth: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    """How far the reference's own reversible backward lies from its plain one, per gradient: |difference| / |gradient|
    (Frobenius norms), in both dtypes. Nothing is judged by it; the report shows it beside the port's."""
    errors: dict[str, dict[str, float]] = {}
    for dtype in DTYPES:
        plain: dict[str, np.ndarray] = {}
        step.run(dtype, plain.__setitem__)
        own: dict[str, np.ndarray] = {}
        step.run(dtype, own.__setitem__, reversible=True)
        errors[dtype] = {
            name: float(np.linalg.norm(own[name] - plain[name]) / max(np.linalg.norm(plain[name]), 1e-300))
            for name in plain
            if name.startswith("gradient:") and name in own
        }
    return errors


def tokens(spec: dict) -> list[dict]:
    """What the reference's tokenizer makes of every text of the job: ids, mask (padded on either side), decoded text.

    A text with a lone surrogate, which the reference cannot encode, gives ``{"error": ...}``; any other must not fail.
    """
    tokenizer = (
        ByteReference() if spec["kind"] == "bytes" else transformers.ReformerTokenizer(spec["path"], pad_token="<unk>")
    )
    return [_tokens_of(tokenizer, text, spec["max_length"]) for text in spec["texts"]]


def _tokens_of(tokenizer, text: str, max_length: int) -> dict:
    try:
        ids = list(tokenizer([text])["input_ids"][0])
        result = {"ids": ids, "decoded": tokenizer.decode(ids)}
        for side in ("right", "left"):
            tokenizer.padding_side = side
            # As a batch of one: the reference leaves a lone empty text unpadded.
            padded = tokenizer([text], max_length=max_length, padding="max_length", truncation=True)
            result[side] = [list(padded["input_ids"][0]), list(padded["attention_mask"][0])]
        return result
    except (UnicodeError, TypeError, RuntimeError) as error:  # pybind's refusal of a lone surrogate is a RuntimeError
        if not any("\ud800" <= character <= "\udfff" for character in text):
            raise
        return {"error": f"{type(error).__name__}: {error}"}


class ByteReference:
    """The byte tokens of google/reformer-enwik8, by the functions of its model card: id = byte + 2, 0 is padding."""

    padding_side = "right"

    def __call__(self, texts: list[str], **options) -> dict:
        rows = [self._row(text, **options) for text in texts]
        return {key: [row[key] for row in rows] for key in ("input_ids", "attention_mask")}

    def _row(self, text: str, max_length: int | None = None, padding=False, truncation=False) -> dict:
        ids = [byte + 2 for byte in text.encode()][: max_length if truncation else None]
        fill = [0] * (max_length - len(ids) if padding else 0)
        mask = [1] * len(ids)
        if self.padding_side == "left":
            return {"input_ids": fill + ids, "attention_mask": [0] * len(fill) + mask}
        return {"input_ids": ids + fill, "attention_mask": mask + [0] * len(fill)}

    def decode(self, ids: list[int]) -> str:
        return bytes(index - 2 for index in ids if index > 1).decode()


if __name__ == "__main__":
    worker.run("reference", main)
