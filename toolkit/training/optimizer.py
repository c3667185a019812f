"""Build optimizers as transformers' Trainer sets them up: which parameters decay, and how gradients are clipped.

Both training and the gate use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle.nn.clip import _squared_l2_norm

from models.operations import compiled

#: Added to the norm that divides the gradients, as in torch's clip_grad_norm_.
NORM_EPSILON = 1e-6
#: Constants of Adafactor, with torch's defaults: exponent of the moments' decay, minimum size of a parameter, and
#: minimum root of a moment. Torch takes the last from the dtype; here float64 uses float32's, so that both dtypes
#: compute the same function.
BETA2_DECAY, MIN_PARAMETER_SIZE, EPSILON = -0.8, 1e-3, 2.0**-23


class ClipGradByGlobalNorm(paddle.nn.ClipGradByGlobalNorm):
    """Scale all gradients in place by min(1, clip_norm / (norm + 1e-6)) (Pascanu et al. 2013, section 3.2).

    The norm is the L2 norm of all gradients together. Paddle's own class leaves out the 1e-6, and copies the gradients.
    If fleet splits a model over devices, it replaces this class by its own.
    """

    def factor(self, gradients: list[paddle.Tensor]) -> paddle.Tensor:
        """Return the clipping factor, a scalar in float64 for float64 gradients and in float32 otherwise."""
        if _support_compiled_loops(gradients):
            square = compiled.square_sums(*gradients).sum()
        else:
            squares = [_squared_l2_norm(grad) for grad in gradients]
            wide_dtype = "float64" if squares[0].dtype == paddle.float64 else "float32"
            square = paddle.stack([square.astype(wide_dtype) for square in squares]).sum()
        return (self.clip_norm / (paddle.sqrt(square) + NORM_EPSILON)).clip(max=1.0)

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Scale the gradients in place to at most the maximum norm of them all, and return the pairs.

        Args:
            params_grads: pairs of a parameter and its gradient.
        """
        gradients = [grad for _, grad in params_grads if grad is not None]
        if not gradients:
            return params_grads
        factor = self.factor(gradients)
        if factor.place.is_cpu_place() and float(factor) == 1.0:
            return params_grads
        for grad in {grad.data_ptr(): grad for grad in gradients}.values():  # two parameters may share a gradient
            scale_in_place(grad, factor.astype(grad.dtype))
        return params_grads


def _support_compiled_loops(tensors: Sequence[paddle.Tensor]) -> bool:
    """Return whether compiled loops can work on all tensors in place."""
    return compiled.supports_compiled(*tensors) and all(x.is_dense() and x.is_contiguous() for x in tensors)


def scale_in_place(grad: paddle.Tensor, factor: paddle.Tensor) -> None:
    """Multiply a gradient in place by `factor`, a tensor with one number.

    On a CPU, multiply by the number itself: Paddle's product with a broadcast tensor takes five times as long there. On
    a GPU, the host would have to wait for the number.
    """
    if grad.place.is_cpu_place():
        grad.scale_(float(factor))
    else:
        grad.multiply_(factor)


class FreesGradients:
    """Mixin that makes a Paddle optimizer free the gradients after each step, as torch does.

    Gradients are never filled with zeros. A step therefore leaves a parameter without a gradient unchanged, whether the
    run was resumed or not.
    """

    def clear_grad(self, set_to_zero: bool = False) -> None:  # noqa: FBT001 (Paddle's signature)
        """Clear all gradients. Unlike in Paddle, `set_to_zero` is False by default."""
        super().clear_grad(set_to_zero)  # type: ignore[misc]


class AdamW(FreesGradients, paddle.optimizer.AdamW):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2), with decoupled decay.

    On a CPU a compiled loop clips the gradients and updates all parameters in one pass over memory. Paddle's kernel
    alone takes 2.7 times as long (60 million numbers on two cores of an Intel Xeon: 110 ms and 40).
    """

    #: Names of a parameter's accumulators, in the order of :func:`models.operations.compiled.adamw_`.
    ACCUMULATORS = ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")

    def _apply_optimize(
        self, loss: Any, startup_program: Any, params_grads: list[tuple[Any, Any]], param_group_idx: int = 0
    ) -> Any:
        """Update all parameters once; on the CPU a compiled loop clips and updates together.

        Args:
            loss: loss of the step, for Paddle's own update.
            startup_program: program of a static graph, for Paddle's own update.
            params_grads: pairs of a parameter and its gradient.
            param_group_idx: index of the parameter group.
        """
        clip = self._grad_clip
        has_supported_clip = clip is None or type(clip) is ClipGradByGlobalNorm
        if not (
            has_supported_clip
            and params_grads
            and _support_compiled_loops([tensor for pair in params_grads for tensor in pair])
        ):
            return super()._apply_optimize(loss, startup_program, params_grads, param_group_idx)
        factor = 1.0 if clip is None else float(clip.factor([grad for _, grad in params_grads]))
        block = paddle.static.default_main_program().global_block()
        self._create_accumulators(block, [parameter for parameter, _ in params_grads])
        rate, rates, decays, tensors = self.get_lr(), [], [], []
        for parameter, gradient in params_grads:
            rates.append(rate * parameter.optimize_attr["learning_rate"])
            decays.append(self._weight_decay if self._apply_decay_param_fun(parameter.name) else 0.0)
            state = (self._accumulators[name][parameter.name] for name in self.ACCUMULATORS)
            tensors += [parameter, gradient, *state]
        compiled.adamw_(rates, decays, self._beta1, self._beta2, self._epsilon, factor, *tensors)
        return []


class ComposedOptimizer(FreesGradients, paddle.optimizer.Optimizer):
    """Base class of optimizers that are composed of Paddle operations and take the learning rate from the host.

    Paddle has neither Lion nor Adafactor. Its SGD decays all parameters, or clips each group of parameters separately.
    The state is kept in Paddle's accumulators, which :mod:`toolkit.run_folder.checkpoint` saves.
    """

    def __init__(
        self,
        learning_rate: Any,
        parameters: list[Any],
        weight_decay: float,
        apply_decay_param_fun: Callable[[str], bool],
        grad_clip: Any,
        **settings: float,
    ) -> None:
        super().__init__(learning_rate, parameters, grad_clip=grad_clip)
        self._weight_decay = weight_decay
        self._apply_decay_param_fun = apply_decay_param_fun
        self.__dict__.update(settings)

    def shapes(self, parameter: Any) -> dict[str, list[int]]:
        """Return the shape of each state tensor of a parameter, by its name. All of them start as zeros.

        Args:
            parameter: parameter of the model.
        """
        raise NotImplementedError

    def update(self, parameter: Any, gradient: Any, rate: float, decay: float, *state: Any) -> None:
        """Update a parameter and its state in place.

        Args:
            parameter: parameter tensor.
            gradient: gradient of the parameter, in its shape.
            rate: learning rate.
            decay: weight decay; 0 for a parameter that does not decay.
            state: state tensors, in the order of :meth:`shapes`.
        """
        raise NotImplementedError

    def _create_accumulators(self, block: Any, parameters: list[Any]) -> None:
        """Create the optimizer's state for each parameter.

        Args:
            block: not used.
            parameters: parameters to update.
        """
        for parameter in parameters:
            for name, shape in self.shapes(parameter).items():
                self._add_accumulator(name, parameter, shape=shape)

    @paddle.no_grad()
    def _append_optimize_op(self, block: Any, param_and_grad: tuple[Any, Any]) -> None:
        """Update one parameter by its gradient.

        Args:
            block: not used.
            param_and_grad: the parameter and its gradient.
        """
        parameter, gradient = param_and_grad
        decay = self._weight_decay if self._apply_decay_param_fun(parameter.name) else 0.0
        state = [self._get_accumulator(name, parameter) for name in self.shapes(parameter)]
        self.update(parameter, gradient, self.get_lr(), decay, *state)


class SGD(ComposedOptimizer):
    """Stochastic gradient descent as in torch: the decay is added to the gradient, and so enters the momentum."""

    momentum: float

    def shapes(self, parameter: Any) -> dict[str, list[int]]:
        """Return the shape of the velocity, if there is momentum.

        Args:
            parameter: parameter of the model.
        """
        return {"moment1": parameter.shape} if self.momentum else {}

    def update(self, parameter: Any, gradient: Any, rate: float, decay: float, *state: Any) -> None:
        """Update a parameter and its velocity by SGD's rule.

        Args:
            parameter: parameter to update, in place.
            gradient: gradient of the parameter.
            rate: learning rate.
            decay: weight decay.
            *state: tensors of the optimizer's state, in the order of :meth:`shapes`.
        """
        step = gradient + decay * parameter if decay else gradient
        for velocity in state:
            step = velocity.scale_(self.momentum).add_(step)
        parameter.subtract_(rate * step)


class Lion(ComposedOptimizer):
    """Lion (Chen et al. 2023, algorithm 2), with decoupled decay."""

    beta1: float
    beta2: float

    def shapes(self, parameter: Any) -> dict[str, list[int]]:
        """Return the shape of the moment.

        Args:
            parameter: parameter of the model.
        """
        return {"moment1": parameter.shape}

    def update(self, parameter: Any, gradient: Any, rate: float, decay: float, *state: Any) -> None:
        """Update a parameter and its moment by Lion's rule.

        Args:
            parameter: parameter to update, in place.
            gradient: gradient of the parameter.
            rate: learning rate.
            decay: weight decay.
            *state: tensors of the optimizer's state, in the order of :meth:`shapes`.
        """
        (moment,) = state
        direction = paddle.sign(self.beta1 * moment + (1 - self.beta1) * gradient)
        parameter.scale_(1 - rate * decay).subtract_(rate * direction)
        moment.scale_(self.beta2).add_((1 - self.beta2) * gradient)


class Adafactor(ComposedOptimizer):
    """Adafactor (Shazeer and Stern 2018, algorithms 4 and 5) as in torch, with decoupled decay.

    The rate is relative to the size of a parameter. The second moment of the last two dimensions is stored as the means
    of its rows and of its columns.
    """

    def shapes(self, parameter: Any) -> dict[str, list[int]]:
        """Return the shapes of the step count and of the second moment, by name.

        For a matrix, the second moment is factored into one number for each row and one for each column.

        Args:
            parameter: parameter of the model.
        """
        *leading_dims, rows, columns = parameter.shape if parameter.ndim > 1 else (1, 1)
        moments = {"row_moment": [*leading_dims, rows, 1], "column_moment": [*leading_dims, 1, columns]}
        return {"step": [1], **(moments if parameter.ndim > 1 else {"moment2": parameter.shape})}

    def update(self, parameter: Any, gradient: Any, rate: float, decay: float, *state: Any) -> None:
        """Update a parameter and its second moment by Adafactor's rule.

        Args:
            parameter: parameter to update, in place.
            gradient: gradient of the parameter.
            rate: learning rate.
            decay: weight decay.
            *state: tensors of the optimizer's state, in the order of :meth:`shapes`.
        """
        step, *moments = state
        step.add_(paddle.ones_like(step))
        share = paddle.pow(
            step, paddle.full_like(step, BETA2_DECAY)
        )  # Paddle rounds a power of a Python number to float32
        square = self.second_moment(gradient.square(), share, moments)
        update = self.clip_update(gradient * square.clip(min=EPSILON**2).rsqrt())
        size = self.relative_rate(parameter, step, rate)
        parameter.scale_(1 - rate * decay).subtract_(size * update)

    def second_moment(self, square: Any, share: Any, moments: list[Any]) -> Any:
        """Move the moments toward the squared gradient by a share, and return the second moment of each element."""
        for moment, axis in zip(moments, (-1, -2), strict=False):
            mean_square = square.mean(axis, keepdim=True) if square.ndim > 1 else square
            moment.add_(share * (mean_square - moment))
        if square.ndim < 2:
            return moments[0]
        rows, columns = moments
        return rows / rows.mean(-2, keepdim=True).clip(min=EPSILON) * columns

    def clip_update(self, update: Any) -> Any:
        """Return the update, scaled down to a root mean square of at most 1."""
        return update / _rms(update).clip(min=1.0)

    def relative_rate(self, parameter: Any, step: Any, rate: float) -> Any:
        """Return the rate, at most 1/sqrt(step), times the root mean square of the parameter."""
        return _rms(parameter).clip(min=MIN_PARAMETER_SIZE) * step.rsqrt().clip(max=rate)


def _rms(value: Any) -> Any:
    """Return the root mean square of a tensor."""
    return value.square().mean().sqrt()


#: Optimizer classes by the value of ``train.optimizer``.
OPTIMIZERS: dict[str, type[AdamW | ComposedOptimizer]] = {
    "adamw": AdamW,
    "sgd": SGD,
    "lion": Lion,
    "adafactor": Adafactor,
}


def decayed_parameters(model: Any) -> set[str]:
    """Return Paddle's names of the parameters that decay: all except biases and parameters of normalization layers."""
    norm_parameters = {
        parameter.name
        for layer in model.sublayers(include_self=True)
        if "norm" in type(layer).__name__.lower()
        for parameter in layer.parameters(include_sublayers=False)
    }
    return {
        parameter.name
        for name, parameter in model.named_parameters()
        if not name.endswith("bias") and parameter.name not in norm_parameters
    }


def create(
    kind: str, model: Any, learning_rate: Any, *, weight_decay: float, max_grad_norm: float | None, **settings: float
) -> AdamW | ComposedOptimizer:
    """Return an optimizer over all parameters of a model.

    Args:
        kind: a key of :data:`OPTIMIZERS`.
        model: Paddle model.
        learning_rate: a number, or a schedule of Paddle's.
        weight_decay: weight decay of all parameters except biases and parameters of normalization layers.
        max_grad_norm: largest norm of all gradients together; None or 0 turns clipping off.
        settings: further settings of the optimizer: ``beta1``, ``beta2`` and ``epsilon`` of AdamW; ``beta1`` and
            ``beta2`` of Lion; ``momentum`` of SGD.
    """
    return OPTIMIZERS[kind](
        learning_rate=learning_rate,
        parameters=model.parameters(),
        weight_decay=weight_decay,
        apply_decay_param_fun=decayed_parameters(model).__contains__,
        grad_clip=ClipGradByGlobalNorm(max_grad_norm) if max_grad_norm else None,
        **settings,
    )
