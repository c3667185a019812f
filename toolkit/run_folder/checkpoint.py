"""Checkpoints of a run, which resumes exactly after its last step.

A checkpoint folder holds the weights, the optimizer's moments, the learning-rate schedule, the state of every random
generator and the trainer's counters, as safetensors and JSON (no pickle). A manifest has the SHA-256 of each file. The
folder is written under a temporary name and then renamed, so that a folder with its final name is complete.
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
from models.files.tensor_file import LazyArrays, write_tensors
from toolkit.errors import ToolkitError
from toolkit.files.lossless import remove_empty_folders
from toolkit.files.ownership import is_run_folder, remove_from_run, replace_in_run
from toolkit.files.whole import MANIFEST, DamagedFolderError, verify_folder, write_folder, write_text
from toolkit.machine.disk import explain_write_errors

WEIGHTS = "weights.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
#: File name of the trainer's state, which PaddleNLP's Trainer looks for when it resumes.
TRAINER_STATE = "trainer_state.json"
#: All files of a checkpoint, in the order of their removal. The manifest is first: without it, a folder is not a
#: checkpoint.
FILES = (MANIFEST, WEIGHTS, OPTIMIZER, STATE, TRAINER_STATE)

#: Accumulators of Paddle's AdamW and of :mod:`toolkit.training.optimizer`. In a state_dict, their names follow the name
#: of the parameter.
ACCUMULATORS = (
    *("moment1", "moment2", "moment2_max", "beta1_pow_acc", "beta2_pow_acc"),
    *("row_moment", "column_moment", "step"),
)


# -- random generators ----------------------------------------------------------------------------------------------


def random_state() -> dict[str, Any]:
    """Return the states of the random generators of Python, NumPy and Paddle, as values for JSON."""
    import paddle

    version, numbers, gauss = random.getstate()
    numpy_state: Any = np.random.get_state()
    name, keys, index, has_gauss, cached_gauss = numpy_state
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), index, has_gauss, cached_gauss],
        "paddle_cpu": _generator_to_json(paddle.framework.core.default_cpu_generator().get_state()),
        "paddle_device": [_generator_to_json(state) for state in paddle.get_rng_state()],
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Restore every random generator to a state of :func:`random_state`."""
    import paddle

    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, index, has_gauss, cached_gauss = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), index, has_gauss, cached_gauss))
    paddle.framework.core.default_cpu_generator().set_state(_generator_from_json(state["paddle_cpu"]))
    paddle.set_rng_state([_generator_from_json(item) for item in state["paddle_device"]])


@contextmanager
def undisturbed_random_state() -> Iterator[None]:
    """Restore every random generator after the ``with`` block, so that its draws do not affect later draws."""
    saved_state = random_state()
    try:
        yield
    finally:
        set_random_state(saved_state)


def _generator_to_json(state: Any) -> list[Any]:
    """Return the state of a Paddle generator: device, seed, offset, and the words of the Mersenne twister as text."""
    device, seed, offset, engine = state.__getstate__()
    return [device, seed, offset, bytes(engine).decode("ascii")]


def _generator_from_json(values: list[Any]) -> Any:
    """Return the state of a random generator of Paddle that was stored as (device, seed, offset, engine)."""
    import paddle

    device, seed, offset, engine = values
    state_class: Any = type(paddle.framework.core.default_cpu_generator().get_state())
    state = state_class.__new__(state_class)
    state.__setstate__((device, seed, offset, list(engine.encode("ascii"))))
    return state


# -- model and optimizer --------------------------------------------------------------------------------------------


def save_weights(model: Any, folder: Path) -> None:
    """Write a model's trainable parameters and persistent buffers, with their structured names in Paddle's layout."""
    _save_tensors(_trainable_tensors(model), folder / WEIGHTS)


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights of a checkpoint into a model.

    Raises:
        DamagedFolderError: the names or shapes do not fit the model.
    """
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, framework="np") as weights_file:
        shapes = {name: tuple(weights_file.get_slice(name).get_shape()) for name in weights_file.keys()}  # noqa: SIM118 - no mapping
        model_tensors = _trainable_tensors(model)
        misfits = sorted(
            name
            for name in {*shapes, *model_tensors}
            if name not in shapes or name not in model_tensors or shapes[name] != (*model_tensors[name].shape,)
        )
        if misfits:
            raise DamagedFolderError(f"{folder}: {misfits[0]} and {len(misfits) - 1} more do not fit the model")
        for name in shapes:
            model_tensors[name].set_value(weights_file.get_tensor(name))


def _trainable_tensors(model: Any) -> dict[str, Any]:
    """Return structured name -> tensor of a model's parameters and persistent buffers, without frozen parameters."""
    frozen_ids = {id(parameter) for parameter in model.parameters() if parameter.stop_gradient}
    return {name: value for name, value in model.state_dict().items() if id(value) not in frozen_ids}


def first_not_finite(model: Any) -> str | None:
    """Return the name of the first parameter with an infinity or NaN; None if all parameters are finite."""
    import paddle

    for name, parameter in model.named_parameters():
        if not bool(paddle.isfinite(parameter.astype("float32")).all()):
            return name
    return None


def save_optimizer(optimizer: Any, model: Any, folder: Path) -> dict[str, Any]:
    """Write the optimizer's tensors, and return the state of its learning-rate schedule as values for JSON.

    Paddle names an accumulator after a global counter of parameters (`linear_7.w_0_moment1_0`), which depends on the
    layers that the process built before. The file uses the structured name of the parameter instead.
    """
    structured_names = {parameter.name: structured_name for structured_name, parameter in model.named_parameters()}
    state = optimizer.state_dict()
    schedule = state.pop("LR_Scheduler", {})
    tensors = {f"{structured_names[name]}|master": value for name, value in state.pop("master_weights", {}).items()}
    for key, value in state.items():
        name, accumulator = _split_accumulator(key)
        tensors[f"{structured_names[name]}|{accumulator}"] = value
    _save_tensors(tensors, folder / OPTIMIZER)
    return {key: value for key, value in schedule.items() if isinstance(value, (int, float))}


def load_optimizer(optimizer: Any, model: Any, folder: Path, schedule: dict[str, Any]) -> None:
    """Load the optimizer's tensors of a checkpoint, and ``schedule``, the return value of :func:`save_optimizer`.

    Raises:
        DamagedFolderError: the file has a tensor for a parameter that the model does not have.
    """
    import paddle
    from safetensors import safe_open

    paddle_names = {structured_name: parameter.name for structured_name, parameter in model.named_parameters()}
    state: dict[str, Any] = {"LR_Scheduler": dict(schedule)}
    with safe_open(folder / OPTIMIZER, framework="np") as optimizer_file:
        for key in optimizer_file.keys():  # noqa: SIM118 - no mapping
            structured_name, accumulator = key.split("|")
            if structured_name not in paddle_names:
                raise DamagedFolderError(
                    f"{folder}: the optimizer has a state for {structured_name}, which the model lacks"
                )
            value = paddle.to_tensor(optimizer_file.get_tensor(key))
            if accumulator == "master":
                state.setdefault("master_weights", {})[paddle_names[structured_name]] = value
            else:
                state[f"{paddle_names[structured_name]}_{accumulator}_0"] = value
    optimizer.set_state_dict(state)


def unfit(model: Any, path: Path) -> str | None:
    """Return the name of a trainable parameter whose optimizer state is missing or has another shape; None if all fit.

    ``path`` is a file of :func:`save_optimizer`.
    """
    from safetensors import safe_open

    with safe_open(path, framework="np") as optimizer_file:
        shapes = [(key.split("|")[0], optimizer_file.get_slice(key).get_shape()) for key in optimizer_file.keys()]  # noqa: SIM118
    expected_shapes = {name: value.shape for name, value in model.named_parameters() if not value.stop_gradient}
    misfits = set(expected_shapes) ^ {name for name, _ in shapes}
    misfits |= {name for name, shape in shapes if not _is_valid_state_shape(shape, expected_shapes.get(name, []))}
    return min(misfits, default=None)


def _is_valid_state_shape(shape: list[int], parameter_shape: list[int]) -> bool:
    """Return whether an optimizer state may have this shape.

    It is a number, or has the shape of the parameter, with size 1 along axes over which the state is averaged.
    """
    fits_parameter = len(shape) == len(parameter_shape) and all(
        state_size in (1, size) for state_size, size in zip(shape, parameter_shape, strict=True)
    )
    return shape == [1] or fits_parameter


def _split_accumulator(key: str) -> tuple[str, str]:
    """Split a key of the state_dict: `linear_0.w_0_moment1_0` -> (`linear_0.w_0`, `moment1`)."""
    for accumulator in ACCUMULATORS:
        if key.endswith(f"_{accumulator}_0"):
            return key[: -len(f"_{accumulator}_0")], accumulator
    raise ToolkitError(f"{key}: an optimizer state that checkpoints do not know; this Paddle may be too new")


def _save_tensors(named_tensors: Mapping[str, Any], path: Path) -> None:
    """Write Paddle tensors to a file; only one tensor at a time is copied to the CPU."""
    with explain_write_errors(path, sum(value.size * value.element_size() for value in named_tensors.values())):
        write_tensors(path, LazyArrays({name: value.numpy for name, value in named_tensors.items()}))


# -- the checkpoints of a run ---------------------------------------------------------------------------------------


class Checkpoints:
    """The folder of a run's checkpoints: `step-00000120/` for resuming, `best-00000100/` with the best weights.

    Args:
        folder: folder of the checkpoints.
        keep: number of checkpoints to keep; with 2, the older checkpoint is left if the newer is damaged.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self, step: int, model: Any, optimizer: Any, state: dict[str, Any], files: Mapping[str, str] | None = None
    ) -> Path:
        """Write the checkpoint of a step, then remove old checkpoints.

        Args:
            step: number of training steps so far.
            model: model whose weights are saved.
            optimizer: Paddle optimizer.
            state: further values for JSON; `best_step` is the step of the best weights, or None.
            files: name -> text of further files.
        """

        def fill(folder: Path) -> None:
            save_weights(model, folder)
            schedule = save_optimizer(optimizer, model, folder)
            full_state = {**state, "step": step, "schedule": schedule, "random_state": random_state()}
            write_text(folder / STATE, json.dumps(full_state) + "\n")
            for name, text in (files or {}).items():
                write_text(folder / name, text)

        target = self.folder / f"step-{step:08d}"
        write_folder(target, fill)
        self._prune(step)
        return target

    def save_best(self, step: int, model: Any, optimizer: Any = None) -> None:
        """Save the weights of a step as the best so far, and the optimizer's state for a run that trains on.

        Args:
            step: number of training steps so far.
            model: model whose weights are saved.
            optimizer: Paddle optimizer, or folder of a checkpoint with its state; None saves no state.
        """

        def fill(folder: Path) -> None:
            save_weights(model, folder)
            if isinstance(optimizer, Path):
                copyfile(optimizer / OPTIMIZER, folder / OPTIMIZER)
            elif optimizer is not None:
                save_optimizer(optimizer, model, folder)

        write_folder(self.best(step), fill)

    def best(self, step: int) -> Path:
        """Return the folder of the best weights of a step."""
        return self.folder / f"best-{step:08d}"

    def newest(self, on_damage: Callable[[DamagedFolderError], None]) -> Path | None:
        """Return the newest checkpoint that is complete together with its best weights; None without such a checkpoint.

        ``on_damage`` is called with the error of each newer checkpoint that is damaged.
        """
        for folder in reversed(self._of("step")):
            try:
                verify_folder(folder)
                best_step = read_state(folder).get("best_step")
                if best_step is not None:
                    verify_folder(self.best(best_step))
                return folder
            except DamagedFolderError as error:
                on_damage(error)
        return None

    def last_step(self) -> int | None:
        """Return the step of the newest checkpoint, without verification; None without a checkpoint."""
        return max((int(folder.name.removeprefix("step-")) for folder in self._of("step")), default=None)

    def begun_with(self) -> int | None:
        """Return the number of processes at the start of the run; None without a checkpoint."""
        for folder in reversed(self._of("step")):
            with suppress(DamagedFolderError, ValueError, TypeError):
                return int(read_state(folder).get("processes", 1))
        return None

    def remove(self, best_step: int | None = None) -> None:
        """Delete all checkpoints of a finished run. Other files in their folder stay.

        The optimizer's state of ``best_step`` is moved into the run folder first.
        """
        if not self._belongs_to_run():
            return
        if best_step is not None:
            with suppress(OSError):
                replace_in_run(self.folder.parent, self.best(best_step) / OPTIMIZER, OPTIMIZER)
        for folder in (*self._of("step"), *self._of("best")):
            self._discard(folder)
        remove_empty_folders([self.folder])

    def _belongs_to_run(self) -> bool:
        """Return whether the checkpoints are in a folder that a run has claimed. Otherwise nothing is removed."""
        return is_run_folder(self.folder.parent) and not self.folder.is_symlink()

    def _of(self, kind: str) -> list[Path]:
        """Return the checkpoint folders of a kind, ``step`` or ``best``, in the order of their steps."""
        paths = self.folder.glob(f"{kind}-*")
        checkpoint_paths = (path for path in paths if re.fullmatch(rf"{kind}-\d{{8,}}", path.name))
        return sorted(path for path in checkpoint_paths if path.is_dir() and not path.is_symlink())

    def _prune(self, step: int) -> None:
        """Remove old checkpoints, and best weights that no remaining checkpoint refers to.

        Checkpoints of later steps are removed as well: they are damaged, so the run resumed from an earlier step.
        """
        if not self._belongs_to_run():
            return
        complete_folders = [folder for folder in self._of("step") if (folder / MANIFEST).is_file()]
        remaining_folders = [folder for folder in complete_folders if folder.name <= f"step-{step:08d}"][-self.keep :]
        for folder in set(self._of("step")).difference(remaining_folders):
            self._discard(folder)
        needed_steps = {_best_step(folder) for folder in remaining_folders}
        for folder in self._of("best"):
            if int(folder.name.removeprefix("best-")) not in needed_steps:
                self._discard(folder)

    def _discard(self, checkpoint: Path) -> None:
        """Remove the files of a checkpoint, and its folder if nothing else is in it."""
        for name in FILES:
            remove_from_run(self.folder.parent, checkpoint / name)
        remove_empty_folders([checkpoint])


def _best_step(checkpoint: Path) -> int | None:
    """Return the step of the best weights that a checkpoint records; None if it is damaged or records none."""
    with suppress(DamagedFolderError):
        return read_state(checkpoint).get("best_step")
    return None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the JSON values of a checkpoint: the caller's values, and `step`, `schedule` and `random_state`.

    Raises:
        DamagedFolderError: the file cannot be read, or a step is not a whole number.
    """
    try:
        state = dict(json.loads(plain_file(checkpoint / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        raise DamagedFolderError(f"{checkpoint}: {STATE} cannot be read") from None
    for key, step in (("step", state.get("step")), ("best_step", state.get("best_step") or 0)):
        if type(step) is not int or step < 0:
            raise DamagedFolderError(f"{checkpoint}: {key} in {STATE} is not a number of steps")
    return state
