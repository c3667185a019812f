"""Checkpoints that are complete, verified and never half-written: what a run needs to go on exactly where it stopped.

A checkpoint folder holds the weights, the optimizer's moments, the scheduler, the state of every random generator and
the trainer's own counters, as safetensors and JSON (no pickle), and a manifest with the SHA-256 of each file. It is
written beside its final place and renamed into it, so that a folder with its final name is a whole one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

from models.files.plain import plain_file
from models.files.tensor_file import OnDemand, write_tensors
from toolkit.errors import ToolkitError
from toolkit.files.lossless import remove_empty_folders
from toolkit.files.ownership import is_run_folder, remove_from_run, replace_in_run
from toolkit.files.whole import MANIFEST, DamagedFolder, verify_folder, write_folder, write_text
from toolkit.machine.disk import writing

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
#: The name under which PaddleNLP's Trainer looks for its own state in the folder that it resumes from.
TRAINER_STATE = "trainer_state.json"
#: All files of a checkpoint, in the order of their removal: without its manifest it is none.
FILES = (MANIFEST, WEIGHTS, OPTIMIZER, STATE, TRAINER_STATE)

#: The accumulators of Paddle's AdamW and of :mod:`toolkit.training.optimizer`, as a state_dict names them after the
#: parameter.
ACCUMULATORS = (
    *("moment1", "moment2", "moment2_max", "beta1_pow_acc", "beta2_pow_acc"),
    *("row_moment", "column_moment", "step"),
)


# -- random generators ----------------------------------------------------------------------------------------------


def random_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and Paddle's generators as JSON."""
    import paddle

    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    name, keys, position, has_gauss, cached = numpy_state
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), position, has_gauss, cached],
        "paddle_cpu": _generator_to_json(paddle.framework.core.default_cpu_generator().get_state()),
        "paddle_device": [_generator_to_json(state) for state in paddle.get_rng_state()],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put every generator back to a :func:`random_state`."""
    import paddle

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    paddle.framework.core.default_cpu_generator().set_state(_generator_from_json(state["paddle_cpu"]))
    paddle.set_rng_state([_generator_from_json(item) for item in state["paddle_device"]])


@contextmanager
def undisturbed_random_state() -> Iterator[None]:
    """Keep draws in the ``with`` block from changing the draws after it."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


def _generator_to_json(state: Any) -> list[Any]:
    """A Paddle generator's state: device, seed, offset, and the Mersenne twister's words as text."""
    device, seed, offset, engine = state.__getstate__()
    return [device, seed, offset, bytes(engine).decode("ascii")]


def _generator_from_json(values: list[Any]) -> Any:
    import paddle

    device, seed, offset, engine = values
    kind: Any = type(paddle.framework.core.default_cpu_generator().get_state())
    state = kind.__new__(kind)
    state.__setstate__((device, seed, offset, list(engine.encode("ascii"))))
    return state


# -- model and optimizer --------------------------------------------------------------------------------------------


def save_weights(model: Any, folder: Path) -> None:
    """Write a model's trained parameters and persistent buffers, in Paddle's layout, under their structured names."""
    _save_tensors(_changing(model), folder / WEIGHTS)


def load_weights(model: Any, folder: Path) -> None:
    """Read back what :func:`save_weights` wrote. Raises DamagedFolder if the names or shapes are not the model's."""
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, framework="np") as saved:
        shapes = {name: tuple(saved.get_slice(name).get_shape()) for name in saved.keys()}  # noqa: SIM118 - no mapping
        own = _changing(model)
        wrong = sorted(
            name
            for name in {*shapes, *own}
            if name not in shapes or name not in own or shapes[name] != (*own[name].shape,)
        )
        if wrong:
            raise DamagedFolder(f"{folder}: {wrong[0]} and {len(wrong) - 1} more do not fit the model")
        for name in shapes:
            own[name].set_value(saved.get_tensor(name))


def _changing(model: Any) -> dict[str, Any]:
    """Structured name -> value that training may change: all of a model but frozen parameters."""
    frozen = {id(parameter) for parameter in model.parameters() if parameter.stop_gradient}
    return {name: value for name, value in model.state_dict().items() if id(value) not in frozen}


def first_not_finite(model: Any) -> str | None:
    """The name of the model's first parameter that holds an infinity or NaN; None where all are finite."""
    import paddle

    for name, parameter in model.named_parameters():
        if not bool(paddle.isfinite(parameter.astype("float32")).all()):
            return name
    return None


def save_optimizer(optimizer: Any, model: Any, folder: Path) -> dict[str, Any]:
    """Write the optimizer's tensors; return the state of its learning-rate schedule, for the caller's JSON.

    Paddle names an accumulator after the parameter's global counter (`linear_7.w_0_moment1_0`), which depends on what
    else the process has built; here it is named after the parameter's place in the model.
    """
    places = {parameter.name: place for place, parameter in model.named_parameters()}
    state = optimizer.state_dict()
    schedule = state.pop("LR_Scheduler", {})
    tensors = {f"{places[name]}|master": value for name, value in state.pop("master_weights", {}).items()}
    for key, value in state.items():
        name, accumulator = _split_accumulator(key)
        tensors[f"{places[name]}|{accumulator}"] = value
    _save_tensors(tensors, folder / OPTIMIZER)
    return {key: value for key, value in schedule.items() if isinstance(value, (int, float))}


def load_optimizer(optimizer: Any, model: Any, folder: Path, schedule: dict[str, Any]) -> None:
    """Read back what :func:`save_optimizer` wrote and returned."""
    import paddle
    from safetensors import safe_open

    names = {place: parameter.name for place, parameter in model.named_parameters()}
    state: dict[str, Any] = {"LR_Scheduler": dict(schedule)}
    with safe_open(folder / OPTIMIZER, framework="np") as saved:
        for key in saved.keys():  # noqa: SIM118 - no mapping
            place, accumulator = key.split("|")
            if place not in names:
                raise DamagedFolder(f"{folder}: the optimizer has a state for {place}, which the model lacks")
            value = paddle.to_tensor(saved.get_tensor(key))
            if accumulator == "master":
                state.setdefault("master_weights", {})[names[place]] = value
            else:
                state[f"{names[place]}_{accumulator}_0"] = value
    optimizer.set_state_dict(state)


def unfit(model: Any, path: Path) -> str | None:
    """Name a trained parameter whose state in a file of :func:`save_optimizer` is not of its shape, or is not there;
    None if all fit."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as saved:
        shapes = [(key.split("|")[0], saved.get_slice(key).get_shape()) for key in saved.keys()]  # noqa: SIM118
    wanted = {name: value.shape for name, value in model.named_parameters() if not value.stop_gradient}
    wrong = set(wanted) ^ {place for place, _ in shapes}
    wrong |= {place for place, shape in shapes if not _is_of(shape, wanted.get(place, []))}
    return min(wrong, default=None)


def _is_of(shape: list[int], parameter: list[int]) -> bool:
    """Whether a state may have this shape: a number, the parameter's, or the parameter's averaged over some axes."""
    same = len(shape) == len(parameter) and all(one in (1, size) for one, size in zip(shape, parameter, strict=True))
    return shape == [1] or same


def _split_accumulator(key: str) -> tuple[str, str]:
    """`linear_0.w_0_moment1_0` -> (`linear_0.w_0`, `moment1`)."""
    for accumulator in ACCUMULATORS:
        if key.endswith(f"_{accumulator}_0"):
            return key[: -len(f"_{accumulator}_0")], accumulator
    raise ToolkitError(f"{key}: an optimizer state that checkpoints do not know; this Paddle may be too new")


def _save_tensors(tensors: Mapping[str, Any], path: Path) -> None:
    """Write Paddle's tensors, copying one at a time."""
    with writing(path, sum(value.size * value.element_size() for value in tensors.values())):
        write_tensors(path, OnDemand({name: value.numpy for name, value in tensors.items()}))


# -- the checkpoints of a run ---------------------------------------------------------------------------------------


class Checkpoints:
    """The folder of a run's checkpoints: `step-00000120/` to go on from, `best-00000100/` with the best weights.

    The last two steps are kept, so that one is left when the newer is damaged.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self, step: int, model: Any, optimizer: Any, state: dict[str, Any], files: Mapping[str, str] | None = None
    ) -> Path:
        """Write the checkpoint of a step, then remove what is no longer needed.

        Args:
            state: JSON values of the caller's; `best_step` (or null) names the best weights that it refers to.
            files: name -> text of further files.
        """

        def fill(folder: Path) -> None:
            save_weights(model, folder)
            schedule = save_optimizer(optimizer, model, folder)
            whole = {**state, "step": step, "schedule": schedule, "random_state": random_state()}
            write_text(folder / STATE, json.dumps(whole) + "\n")
            for name, text in (files or {}).items():
                write_text(folder / name, text)

        target = self.folder / f"step-{step:08d}"
        write_folder(target, fill)
        self._prune(step)
        return target

    def save_best(self, step: int, model: Any, optimizer: Any = None) -> None:
        """Keep the weights of a step as the best so far, and the optimizer's state, for a run that continues this.

        Args:
            optimizer: a Paddle optimizer, or a checkpoint with its state.
        """

        def fill(folder: Path) -> None:
            save_weights(model, folder)
            if isinstance(optimizer, Path):
                copyfile(optimizer / OPTIMIZER, folder / OPTIMIZER)
            elif optimizer is not None:
                save_optimizer(optimizer, model, folder)

        write_folder(self.best(step), fill)

    def best(self, step: int) -> Path:
        """Where the best weights of a step are."""
        return self.folder / f"best-{step:08d}"

    def newest(self, on_damage: Callable[[DamagedFolder], None]) -> Path | None:
        """The newest checkpoint that is whole, with the best weights it refers to; None when there is none.
        ``on_damage`` is told of each newer one that is damaged."""
        for folder in reversed(self._of("step")):
            try:
                verify_folder(folder)
                best_step = read_state(folder).get("best_step")
                if best_step is not None:
                    verify_folder(self.best(best_step))
                return folder
            except DamagedFolder as error:
                on_damage(error)
        return None

    def last_step(self) -> int | None:
        """The step of the newest checkpoint, which is not verified; None when there is none."""
        return max((int(folder.name.removeprefix("step-")) for folder in self._of("step")), default=None)

    def begun_with(self) -> int | None:
        """Number of processes that the run began with; None without a checkpoint."""
        for folder in reversed(self._of("step")):
            with suppress(DamagedFolder, ValueError, TypeError):
                return int(read_state(folder).get("processes", 1))
        return None

    def remove(self, best_step: int | None = None) -> None:
        """Delete all checkpoints: the run is finished. What else is in their folder stays. The optimizer's state of the
        best step is moved into the run folder."""
        if not self._belongs_to_run():
            return
        if best_step is not None:
            with suppress(OSError):
                replace_in_run(self.folder.parent, self.best(best_step) / OPTIMIZER, OPTIMIZER)
        for folder in (*self._of("step"), *self._of("best")):
            self._discard(folder)
        remove_empty_folders([self.folder])

    def _belongs_to_run(self) -> bool:
        """Return whether a run has claimed the folder above. Nothing is removed elsewhere, or through a link."""
        return is_run_folder(self.folder.parent) and not self.folder.is_symlink()

    def _of(self, kind: str) -> list[Path]:
        """Return the folders named like one of a kind; anything else there is not the run's."""
        found = self.folder.glob(f"{kind}-*")
        named = (path for path in found if re.fullmatch(rf"{kind}-\d{{8,}}", path.name))
        return sorted(path for path in named if path.is_dir() and not path.is_symlink())

    def _prune(self, step: int) -> None:
        """Remove old steps, later ones (damaged: the run went back), and best weights that no kept step names."""
        if not self._belongs_to_run():
            return
        whole = [folder for folder in self._of("step") if (folder / MANIFEST).is_file()]
        kept = [folder for folder in whole if folder.name <= f"step-{step:08d}"][-self.keep :]
        for folder in set(self._of("step")).difference(kept):
            self._discard(folder)
        needed = {_best_step(folder) for folder in kept}
        for folder in self._of("best"):
            if int(folder.name.removeprefix("best-")) not in needed:
                self._discard(folder)

    def _discard(self, checkpoint: Path) -> None:
        """Remove the files of a checkpoint, and its folder if nothing else is in it."""
        for name in FILES:
            remove_from_run(self.folder.parent, checkpoint / name)
        remove_empty_folders([checkpoint])


def _best_step(checkpoint: Path) -> int | None:
    with suppress(DamagedFolder):
        return read_state(checkpoint).get("best_step")
    return None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The JSON values of a checkpoint: the caller's, and `step`, `schedule`, `random_state`. Raises DamagedFolder if
    they cannot be read, or a step is not a number of steps."""
    try:
        state = dict(json.loads(plain_file(checkpoint / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise DamagedFolder(f"{checkpoint}: {STATE} cannot be read") from None
    for key, step in (("step", state.get("step")), ("best_step", state.get("best_step") or 0)):
        if type(step) is not int or step < 0:
            raise DamagedFolder(f"{checkpoint}: {key} in {STATE} is not a number of steps")
    return state
