"""The Paddle worker: the same train-mode step by the port, measured against R64 tensor by tensor.

Run as ``python -m toolkit.parity.candidate JOB``. It uses the draws and bucket choices that the reference wrote down,
runs in each dtype of the job, and records how far every output and gradient lies from the truth. The verdict is not its
business (:mod:`.verdict`).
"""

from __future__ import annotations

import inspect
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from toolkit import runtime
from toolkit.parity import bundle, worker
from toolkit.parity.draws import ModuleStack


class RecordedDraws:
    """The reference's draws as a source for :mod:`models.randomness`; says which were asked for, and which wrongly.

    Args:
        tensors: name -> mask or rotation.
        rates: name -> dropout rate.
        stack: names the draws by the module that is running.
    """

    def __init__(self, tensors: dict[str, np.ndarray], rates: dict[str, float], stack: ModuleStack) -> None:
        self.tensors = tensors
        self.rates = rates
        self.stack = stack
        self.used: set[str] = set()
        self.problems: dict[str, str] = {}

    def dropout(self, x, p, mask_shape):
        import paddle

        name = self.stack.draw("dropout")
        mask = self._take(name, mask_shape, f"dropout of {p}")
        if mask is None:
            return x
        if p != self.rates[name]:
            self.problems[name] = f"dropout of {p}, the reference has {self.rates[name]}"
        return x * (paddle.to_tensor(mask).astype(x.dtype) / (1.0 - p))

    def normal(self, shape, dtype, seed):
        import paddle

        drawn = self._take(self.stack.draw("normal"), shape, "rotations")
        return paddle.randn(shape, dtype) if drawn is None else paddle.to_tensor(drawn).astype(dtype)

    def state(self):
        return None

    def restore(self, state) -> None:
        """Nothing to do: names repeat by themselves when a block is computed again."""

    def _take(self, name: str, shape, what: str) -> np.ndarray | None:
        value = self.tensors.get(name)
        if value is None:
            self.problems[name] = f"{what} is drawn here, the reference draws nothing"
            return None
        self.used.add(name)
        if list(value.shape) != list(shape):
            self.problems[name] = f"{what} is drawn with shape {list(shape)}, the reference's is {list(value.shape)}"
            return None
        return value

    def unused(self) -> list[str]:
        """Draws of the reference that the port never asked for."""
        return sorted(n for n in self.tensors if n.startswith(("dropout:", "normal:")) and n not in self.used)


class Step:
    """One train-mode step of the port, in a dtype, with everything it computes handed to ``measure``."""

    def __init__(self, job: dict, folder: Path, dtype: str, backward: str = "reversible") -> None:
        import paddle

        from models.reformer import config, modeling, weights

        self.draws_by_name = bundle.read_tensors(folder / "reference" / "draws.safetensors")
        self.rates = bundle.read_json(folder / "reference" / "rates.json")
        self.batch = {
            name: paddle.to_tensor(value) for name, value in bundle.read_tensors(folder / "batch.safetensors").items()
        }
        self.given = bundle.read_tensors(folder / "weights.safetensors")
        self.model = modeling.CLASSES[job["head"]](config.ReformerConfig(backward=backward, **job["config"]))
        if dtype == "float64":
            self.model.to(dtype="float64")
        weights.load(self.model, self.given)
        self.model.train()
        self.weights = weights
        self.flips: dict[str, dict] = {}

    def run(self, measure: Callable[[str, np.ndarray], None], watched: bool = True) -> RecordedDraws:
        """Forward and backward. Without ``watched`` only the loss and the gradients are handed on."""
        from models.randomness import use

        stack = ModuleStack()
        draws = RecordedDraws(self.draws_by_name, self.rates, stack)
        hooks = self._hooks(stack, measure if watched else None)
        restore = self._give_buckets()
        try:
            with use(draws):
                self.recording = watched
                output = self.model(**self.batch)
                self.recording = False
                if watched:
                    measure("logits", output.logits.numpy())
                measure("loss", output.loss.numpy())
                output.loss.backward()
        finally:
            for hook in hooks:
                hook.remove()
            restore()
        self._measure_gradients(measure)
        return draws

    def own_gradients(self) -> dict[str, np.ndarray]:
        """The parameters' gradients of one step with the port's own draws and buckets, nothing watched."""
        self.model(**self.batch).loss.backward()
        return {f"gradient:{n}": p.grad.numpy() for n, p in self.model.named_parameters() if p.grad is not None}

    def _hooks(self, stack: ModuleStack, measure) -> list:
        hooks = []
        for name, layer in self.model.named_sublayers(include_self=True):
            hooks.append(layer.register_forward_pre_hook(lambda layer, args, name=name: stack.enter(name)))
            hooks.append(layer.register_forward_post_hook(self._left(name, stack, measure)))
        return hooks

    def _left(self, name: str, stack: ModuleStack, measure):
        from models.reformer.modeling import ReformerEmbeddings, ReformerLayer

        def hook(layer, args, output) -> None:
            called = stack.leave()
            if isinstance(layer, ReformerEmbeddings):
                self.embedded = output
                output.retain_grads()
            if measure is None or not self.recording or name == "":
                return
            if isinstance(layer, ReformerLayer):
                measure(f"stream:{name}#attention", output[0].value.numpy())
                measure(f"stream:{name}#hidden", output[1].value.numpy())
                return
            tensor = first_tensor(output)
            if tensor is not None:
                measure(called, tensor.numpy())

        return hook

    def _give_buckets(self) -> Callable[[], None]:
        """Let every LSH attention choose its buckets, note where they differ from R64's, and go on with R64's."""
        import paddle

        from models.reformer.attention import LSHSelfAttention

        layers = [(n, x) for n, x in self.model.named_sublayers() if isinstance(x, LSHSelfAttention)]
        for name, layer in layers:

            def choose(*args, name=name, original=layer.hash_vectors, **kwargs):
                own = original(*args, **kwargs)
                truth = self.draws_by_name.get(f"buckets:{name}")
                if truth is None or list(truth.shape) != own.shape:
                    self.flips[name] = {"shape": own.shape}
                    return own
                flipped = own.numpy() != truth
                margins = self.draws_by_name[f"margin:{name}"][flipped]
                self.flips[name] = {
                    "count": int(flipped.sum()),
                    "of": int(flipped.size),
                    "largest_margin": float(margins.max(initial=0.0)),
                }
                return paddle.to_tensor(truth.astype("int64"))

            layer.hash_vectors = choose

        def restore() -> None:
            for _, layer in layers:
                del layer.hash_vectors

        return restore

    def _measure_gradients(self, measure) -> None:
        from models import weights

        table = self.model.table
        if self.embedded.grad is not None:
            measure("gradient:reformer.embeddings", self.embedded.grad.numpy())
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                role = table[name].role if name in table else "unknown"
                measure(f"gradient:{name}", weights.to_paddle(parameter.grad.numpy(), role))
        self.model.clear_gradients()

    def parameter_errors(self) -> dict[str, float]:
        """By how much each parameter that the port holds differs from the one it was given: 0 everywhere, or wrong."""
        held = dict(self.weights.dump(self.model))
        return {name: float(np.abs(held[name].astype("float64") - value).max()) for name, value in self.given.items()}

    def places(self) -> dict[str, dict[str, str]]:
        """For every module of the port: its class and the line that defines it."""
        found = {}
        for name, layer in self.model.named_sublayers():
            parent = self._parent(name)
            found[name] = {"class": type(layer).__name__, "where": source_of(layer, parent, name.rsplit(".", 1)[-1])}
        return found

    def _parent(self, name: str):
        parent = self.model
        for part in name.split(".")[:-1]:
            parent = getattr(parent, part) if not part.isdigit() else parent[int(part)]
        return parent


def source_of(layer, parent, attribute: str) -> str:
    """``file:line`` where the parent makes the layer and, if its class is the port's own, where that is defined."""
    made = _line_of(parent, rf"self\.{attribute}\s*=")
    defined = _line_of(layer, r"class ") if type(layer).__module__.startswith("models.") else None
    return ", ".join(filter(None, [made, defined and f"class at {defined}"]))


def _line_of(owner, pattern: str) -> str | None:
    """``file:line`` of the first line of ``owner``'s class that matches, relative to the repository."""
    try:
        lines, first = inspect.getsourcelines(type(owner))
        file = Path(inspect.getsourcefile(type(owner)))
    except (OSError, TypeError):
        return None
    offset = next((index for index, line in enumerate(lines) if re.search(pattern, line)), None)
    if offset is None:
        return None
    root = Path(__file__).resolve().parents[2]
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}:{first + offset}"


def first_tensor(output):
    """The tensor that a module's output is compared by: itself, or the first of a tuple or model output."""
    import paddle

    if isinstance(output, paddle.Tensor):
        return output
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return next((value for value in values if isinstance(value, paddle.Tensor)), None)


def measure_dtype(job: dict, folder: Path, truth: dict[str, np.ndarray], dtype: str) -> dict:
    """Run the step in ``dtype`` as training will (reversible), once more unwatched, and once by plain autograd."""
    step = Step(job, folder, dtype)
    seen: dict[str, dict] = {}
    values: dict[str, np.ndarray] = {}

    def measure(name: str, value: np.ndarray) -> None:
        if name.startswith("gradient:") or name == "loss":
            values[name] = value
        seen[name] = (
            {**bundle.difference(value, truth[name]), "shape": list(value.shape)}
            if name in truth
            else {"shape": list(value.shape), "finite": bool(np.isfinite(value).all()), "rms": None, "max": None}
        )

    draws = step.run(measure)
    unwatched: dict[str, np.ndarray] = {}
    step.run(unwatched.__setitem__, watched=False)
    plain: dict[str, np.ndarray] = {}
    Step(job, folder, dtype, "autograd").run(plain.__setitem__, watched=False)
    return {
        "tensors": seen,
        "parameter_errors": step.parameter_errors(),
        "draw_problems": draws.problems,
        "unused_draws": draws.unused(),
        "flips": step.flips,
        "num_buckets": step.model.config.num_buckets,
        "hooks_change_nothing": all(np.array_equal(values[n], unwatched.get(n), equal_nan=True) for n in values),
        "reversible": gradient_differences(values, plain),
        "replay": replay_differences(job, folder, dtype),
        "places": step.places(),
    }


def measure_mutant(job: dict, folder: Path, truth: dict[str, np.ndarray], name: str) -> dict:
    """:func:`measure_dtype` in float64 with a fault in force; a port that stops by itself gives ``{"raised": ...}``."""
    from toolkit.parity.mutants import by_name

    with by_name(name).in_force():
        try:
            return {"float64": measure_dtype(job, folder, truth, "float64")}
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"}


def replay_differences(job: dict, folder: Path, dtype: str) -> dict[str, float]:
    """The reversible backward against plain autograd with the port's own generator in place of the recorded draws.

    Recorded draws repeat by name whatever the port does; here only a port that replays its generator comes out equal.
    """
    gradients = []
    for backward in ("reversible", "autograd"):
        step = Step(job, folder, dtype, backward)
        runtime.seed_everything(job["seed"])
        gradients.append(step.own_gradients())
    return gradient_differences(*gradients)


def gradient_differences(values: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> dict[str, float]:
    """For every gradient of ``plain``, how far that of ``values`` is off, relative to its norm."""
    return {name: relative_norm(values[name], plain[name]) for name in plain if name.startswith("gradient:")}


def relative_norm(value: np.ndarray, truth: np.ndarray) -> float:
    """|value - truth| / |truth| in Frobenius norms; 0 where both are 0."""
    error = float(np.linalg.norm(value.astype("float64") - truth.astype("float64")))
    return error / max(float(np.linalg.norm(truth.astype("float64"))), 1e-300) if error else 0.0


def tokens(spec: dict) -> list[dict]:
    """What the port's tokenizer makes of every text of the job, in the form of ``reference.tokens``."""
    from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer

    tokenizer = ByteTokenizer() if spec["kind"] == "bytes" else ReformerTokenizer(Path(spec["path"]).read_bytes())
    results = []
    for text in spec["texts"]:
        ids = tokenizer.encode(text)
        result = {"ids": ids, "decoded": tokenizer.decode(ids)}
        for side in ("right", "left"):
            padded = tokenizer([text], max_length=spec["max_length"], padding="max_length", padding_side=side)
            result[side] = [padded["input_ids"][0].tolist(), padded["attention_mask"][0].tolist()]
        results.append(result)
    return results


def main(folder: Path) -> None:
    """Run the job in ``folder`` (see :mod:`.bundle`)."""
    started = time.monotonic()
    job = bundle.read_json(folder / "job.json")
    runtime.configure(job["device"], job["threads"])
    import paddle  # noqa: F401 - loaded while the reference still computes

    from models.reformer import modeling  # noqa: F401

    tokenized = tokens(job["tokenizer"]) if job["tokenizer"] else None
    bundle.wait_for(folder / "reference" / "order.json", folder / "reference" / "failed")
    truth = bundle.read_tensors(folder / "reference" / "float64.safetensors")
    result = {
        "schema": bundle.SCHEMA,
        "dtypes": {dtype: measure_dtype(job, folder, truth, dtype) for dtype in job["dtypes"]},
        "mutants": {name: measure_mutant(job, folder, truth, name) for name in job["mutants"]},
        "tokens": tokenized,
        "versions": runtime.versions(),
        "flags": runtime.flags(),
        "seconds": time.monotonic() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    bundle.write_json(folder / "candidate" / "result.json", result)


if __name__ == "__main__":
    worker.run("candidate", main)
