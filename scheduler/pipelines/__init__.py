"""Pipelines from plain callables and models: `plait.pipeline`."""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .api import Pipeline, pipeline
    from .steps import Each, PipelineStep, each, step

__all__ = ["Each", "Pipeline", "PipelineStep", "each", "pipeline", "step"]

__getattr__, __dir__ = lazily(
    __name__, {".api": "Pipeline pipeline", ".steps": "Each PipelineStep each step"}
)
