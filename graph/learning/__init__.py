"""Training as nodes of the graph: layers, losses, optimizers, learning rates, initial values.

All of these are functions of a GraphBuilder; the nodes they add are planned like all others. State
that lasts from one item to the next, such as weights and momenta, is in variables of the graph.

Examples
--------
>>> import numpy as np
>>> import plait as pl
>>> b = pl.GraphBuilder("regression")
>>> x, label = b.input("x", "float32", (8, 2)), b.input("label", "float32", (8, 1))
>>> w = b.variable("w", np.zeros((2, 1), "float32"))
>>> loss = pl.learning.mean_squared_error(b, b.op("MatMul", x, w), label)
>>> _ = pl.learning.minimize(b, loss, pl.learning.SGD(0.5))
>>> b.output("loss", loss)
>>> feeds = {"x": np.eye(8, 2, dtype="float32"), "label": np.eye(8, 1, dtype="float32")}
>>> with pl.BlockingSession(pl.plan(b.build())) as session:
...     losses = [session.run(feeds)["loss"].item() for _ in range(3)]
>>> losses[0] > losses[1] > losses[2]
True
"""

from .clipping import clip_by_global_norm, clip_by_norm, clip_by_value
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
from .optimizers import SGD, Adam, AdamW, Optimizer, RMSProp, Slots, Update
from .schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    Progress,
    Rate,
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
