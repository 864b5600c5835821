"""Training as nodes of the graph: layers, losses, optimizers, learning rates, initial values.

All of these are functions of a GraphBuilder; what they add is planned like everything else. What
lasts from one item to the next, such as weights and momenta, is in variables of the graph.
"""

from ..gradients import clip_by_global_norm
from .clipping import clip_by_norm, clip_by_value
from .initializers import (
    fans,
    features,
    filled,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    normal,
    ones,
    uniform,
    zeros,
)
from .layers import attention, conv, dense, norm
from .losses import (
    Reduction,
    accuracy,
    binary_cross_entropy,
    huber,
    mean_absolute_error,
    mean_squared_error,
    softmax_cross_entropy,
    sparse_softmax_cross_entropy,
)
from .minimize import apply_gradients, minimize, trainable
from .optimizer import Optimizer, Slots, Update
from .optimizers import SGD, Adam, AdamW, RMSProp
from .progress import Progress, Rate
from .schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    Schedule,
    StepDecay,
    WarmUp,
)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "CosineDecay",
    "ExponentialDecay",
    "Optimizer",
    "Progress",
    "RMSProp",
    "Rate",
    "Reduction",
    "Schedule",
    "Slots",
    "StepDecay",
    "Update",
    "WarmUp",
    "accuracy",
    "apply_gradients",
    "attention",
    "binary_cross_entropy",
    "clip_by_global_norm",
    "clip_by_norm",
    "clip_by_value",
    "conv",
    "dense",
    "fans",
    "features",
    "filled",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "huber",
    "mean_absolute_error",
    "mean_squared_error",
    "minimize",
    "norm",
    "normal",
    "ones",
    "softmax_cross_entropy",
    "sparse_softmax_cross_entropy",
    "trainable",
    "uniform",
    "zeros",
]
