"""A step of a pair's reference: any torch module, run by the gate like the references of this project's families."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.parity.exchange.results import ReferenceFacts
from toolkit.parity.families.pair.reference_module import (
    build_model,
    collect_logits,
    compute_output,
    epsilons_of,
    exact_buffers_of,
    round_momenta,
)
from toolkit.parity.families.pair.reference_patches import replace_functions, round_epsilons, use_default_dtype
from toolkit.parity.job import user_code
from toolkit.parity.job.buffers import hide_initial_infinities
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import PairMap
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import WHOLE
from toolkit.parity.measure.naming import TensorName, append_number
from toolkit.parity.measure.updates import scale_gradient
from toolkit.parity.reference.buffers import buffers_of, frozen_parameters
from toolkit.parity.reference.choices import Choices
from toolkit.parity.reference.float64_checks import NanWatch
from toolkit.parity.reference.optimizer import Optimizer
from toolkit.parity.reference.points import Keep, Points, keep_nothing, to_numpy
from toolkit.parity.reference.random_functions import recorded_random_functions
from toolkit.parity.reference.recorder import Recorder, record_lengths
from toolkit.parity.reference.step import STORAGE_DTYPES, Step, nudge_copy


class PairStep(Step):
    """A forward and a backward of a user's torch module, with recorded draws.

    Args:
        job: job of the pair.
        arrays: the mappings of :class:`.step.Step`, such as the reference's weights, by name.

    Attributes:
        source: loaded module of the user's file.
        map: correspondence of the two sides.
        epsilons: epsilon of each norm, by the path of its module.
        drops_gradients: whether each gradient is freed as soon as it is kept.
        buffers: values of the buffers before the step, by name.
    """

    def __init__(self, job: Job, *arrays: Mapping[str, np.ndarray]) -> None:
        assert job.pair is not None
        self.source = user_code.load(job.pair.reference)
        self.map = job.pair.map or PairMap()
        self._job, self._has_loss, self.forward_only = job, job.pair.has_loss, job.pair.forward_only
        self._models: dict[torch.dtype, nn.Module] = {}
        self.epsilons: dict[str, float] = {}
        self.drops_gradients = job.brief
        float32_buffers = {name: value.clone() for name, value in self._model_in(torch.float32).named_buffers()}
        super().__init__(job, *arrays)
        self.buffers = exact_buffers_of(self.model, float32_buffers)
        self.unread = {}

    def set_initial_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Replace the values that some buffers have before a run.

        Frozen parameters are part of the weights and not replaced.

        Args:
            buffers: new values by name.
        """
        self.buffers |= {name: torch.from_numpy(value) for name, value in buffers.items() if name in self.buffers}

    def build(self, job: Job) -> nn.Module:
        """Return the user's module, built in float64."""
        return self._model_in(torch.float64)

    def _model_in(self, dtype: torch.dtype) -> nn.Module:
        """Return the user's module as its file builds it in a dtype, with tables that are computed in this dtype.

        The module of each dtype is built once and kept, except if the model is large.
        """
        if dtype not in self._models:
            if self._job.brief:  # a large model is kept in one dtype at a time
                self._models.clear()
                self.model = nn.Module()
            self._models[dtype] = build_model(self.source, self._job, dtype)
            assert self._job.pair is not None
            self.epsilons = epsilons_of(self._models[dtype])
            if not self._job.pair.any_framework:
                round_momenta(self._models[dtype])
        return self._models[dtype]

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Return the output of the reference for a batch, with its loss unless only a forward is compared.

        If a file of the pair has its own ``loss`` function, the logits are None. If the reference is recorded for any
        framework, they are the logits of the only call of the model.
        """
        with user_code.running(self.source), collect_logits(self.model) as logits:
            output = compute_output(self.source, self.model, inputs, not self.forward_only)
        if not self._has_loss:
            return output
        assert self._job.pair is not None
        return replace(output, logits=logits[0] if self._job.pair.any_framework and len(logits) == 1 else None)

    def load(self, dtype: str, nudge: int = 0) -> None:
        """Load the weights and the initial buffers into the model of a dtype, and nudge the weights.

        Args:
            dtype: dtype of the run.
            nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place, in
                directions that depend on the number.
        """
        self.dtype, storage_dtype = dtype, STORAGE_DTYPES[dtype]
        self.model = self._model_in(storage_dtype)
        complex_buffers = [named_buffer for named_buffer in self.model.named_buffers() if named_buffer[1].is_complex()]
        self.model.to(device=self.device, dtype=storage_dtype)
        for name, buffer in complex_buffers:  # torch has kept only the real parts
            path, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(path), leaf, buffer.to(self.device, storage_dtype.to_complex()))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(nudge_copy(self.weights[name], storage_dtype, nudge))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.buffers[name].to(buffer))

    def run(self, dtype: str, keep: Keep, nudge: int = 0, plain: bool = True, has_hooks: bool = True) -> None:
        """Load the weights, run forward and backward, and keep the compared outputs, gradients and buffers.

        The buffers are kept as they are after the step.

        Args:
            dtype: dtype of the run.
            keep: function that receives the name and value of each tensor.
            nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place, in
                directions that depend on the number.
            plain: unused, because a user's module has only one backward.
            has_hooks: whether outputs and buffers are kept, too. Otherwise only the loss and the gradients are kept.
        """
        with user_code.running(self.source, alone=False):  # the file may define a backward
            super().run(dtype, self._keep_matched(keep), nudge, plain, has_hooks)
        compared_names = {match.reference for match in self.map.buffers} | set(self.map.reference_state)
        initial = {**self.buffers, **self.weights}
        for name, value in {**buffers_of(self.model), **frozen_parameters(self.model)}.items():
            if has_hooks and name in compared_names:
                keep(f"buffer:{name}", hide_initial_infinities(value, to_numpy(initial[name])))

    def sort_records(self, records: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
        """Return the records of a run, with the gradients in the order of their modules' first calls.

        Args:
            records: statistics of R64's tensors, by name.
        """
        positions = {f"gradient:{name}": number for number, (name, _) in enumerate(self.model.named_parameters())}
        names = [TensorName.parse(name) for name in records]
        # The loss and the model's own parameters belong to the module "".
        modules = dict.fromkeys(name.module for name in names if name.kind == "output")
        module_order = {module: number for number, module in enumerate(modules)}

        def position_of(name: str) -> tuple[int, int]:
            """Return the position of a gradient: its module's first call, and then the order of the parameters."""
            return module_order.get(TensorName.parse(name).module.rpartition(".")[0], -1), positions.get(name, -1)

        gradients = iter(sorted((str(name) for name in names if name.kind == "gradient"), key=position_of))
        sorted_names = [next(gradients) if name.kind == "gradient" else str(name) for name in names]
        return {name: records[name] for name in sorted_names}

    def evaluate(self, keep: Keep, nudge: int = 0) -> None:
        """Run the model in evaluation mode, and keep the compared outputs and the loss.

        Nothing is run if the step itself is a forward in evaluation mode.

        Args:
            keep: function that receives the name and value of each tensor.
            nudge: number that selects the directions of the nudge of the weights; 0 for unchanged weights.
        """
        if not self.forward_only:  # otherwise the step is already a forward in evaluation mode
            super().evaluate(self._keep_matched(keep), nudge)

    def evaluations(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the only evaluation of a pair, which uses the batch of the step."""
        return {WHOLE: self._inputs()}

    def is_scored(self, batch: Mapping[str, torch.Tensor]) -> bool:
        """Return True, because the evaluation of a pair always has a loss."""
        return True

    def train_on(self, keep: Keep, truth: Mapping[str, np.ndarray], has_float32_powers: bool = False) -> None:
        """Update the parameters with AdamW and gradients made from R64's, and keep them after each update.

        Unlike for a family, all parameters have weight decay, and no loss is computed after the updates.

        Args:
            keep: function that receives the name and value of each parameter, such as `updated:head.weight#2`.
            truth: R64's tensors by name, with the gradients.
            has_float32_powers: whether AdamW keeps the powers of its betas in float32, as Paddle does.
        """
        if self.forward_only or not self.updates:
            return
        optimizer = Optimizer(self.model, self.settings, decayed_names=dict(self.model.named_parameters()))
        self.model.zero_grad()
        for number in range(1, self.updates + 1):
            for name, parameter in self.model.named_parameters():
                if (gradient := truth.get(f"gradient:{name}")) is not None:
                    parameter.grad = torch.from_numpy(scale_gradient(gradient, number, [1.0])).to(parameter)
            optimizer.update(number, has_float32_powers)
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    keep(append_number(f"updated:{name}", number), to_numpy(parameter))

    def trace(self, dtype: str, points: Points, nudge: int = 0) -> None:
        """Run the step with the tensors of mapped modules passing through ``points``, which record or replace them.

        Args:
            dtype: dtype of the run.
            points: points of the run.
            nudge: number that selects the directions of the nudge of the weights; 0 for unchanged weights.
        """
        points.only = self._is_matched
        super().trace(dtype, points, nudge)

    def _is_matched(self, name: str) -> bool:
        """Return whether the port has a tensor of this name, so that it can have a point of the trace."""
        tensor_name = TensorName.parse(name)
        if tensor_name.kind == "input" and tensor_name.module in self.map.axes:
            return False  # the order of the axes of an input is unknown
        return tensor_name.kind not in ("output", "input") or tensor_name.module in self.map.modules

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        """Return the facts about R64 that the verdict needs, in addition to its tensors.

        Args:
            records: statistics of R64's tensors, by name.
        """
        return replace(
            super().facts(records),
            epsilons={n: e for n, e in self.epsilons.items() if n in self.map.modules},
            first_nan=self._first_nan() if any(record.rms is None for record in records.values()) else "",
            choice_moved=self._collect_changes(lambda draws: draws.choices_moved),
            read=self._read_outputs(),
            read_beside=sorted(self.read_beside),
        )

    def _read_outputs(self) -> dict[str, float]:
        """Return the share of rows that the loss depends on, by output (:attr:`.results.ReferenceFacts.read`).

        If the file has its own loss, the last output is omitted. No logits are compared then, so the effect of this
        output on the returned values is unknown.
        """
        assert self.unread is not None
        names = [name for name in self.unread if self.map.compares(name)]
        last = names[-1:] if self._has_loss else []
        return {
            name: float(1 - unread.all(-1).mean())
            for name, unread in self.unread.items()
            if unread.ndim and unread.size and name not in last
        }

    def _first_nan(self) -> str:
        """Return the first operation of R64 that returns NaN, with its source line; "" if there is none."""
        with NanWatch() as watch:
            self.run("float64", keep_nothing)
        return watch.first

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Record or replay all draws and choices inside the ``with`` block, in the dtype of the last :meth:`load`.

        The epsilons of norms are rounded as Paddle's, unless the reference is recorded for any framework.

        Args:
            recorder: recorder of the run.
            plain: unused, because a user's module has only one backward.
        """
        assert self._job.pair is not None
        with (
            replace_functions(recorder),
            recorded_random_functions(recorder),
            Choices(recorder),
            record_lengths(),
            use_default_dtype(STORAGE_DTYPES[self.dtype]),
            contextlib.nullcontext() if self._job.pair.any_framework else round_epsilons(),
        ):
            yield

    def _keep_matched(self, keep: Keep) -> Keep:
        """Return a version of ``keep`` that ignores the tensors without a counterpart in the port."""

        def keep_matched(name: str, value: np.ndarray) -> None:
            """Keep a tensor if the port has a counterpart."""
            if self.map.compares(name):
                keep(name, value)

        return keep_matched


#: Class of the step of a pair's reference.
STEP = PairStep
