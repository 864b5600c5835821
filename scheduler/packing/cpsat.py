"""The exact problem for OR-Tools' CP-SAT, which succeeds on other problems than our search."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from ...graph.extras import how_to_install
from .blocks import PackingError
from .problem import Problem


def is_installed() -> bool:
    """True when OR-Tools can be imported."""
    return find_spec("ortools") is not None


def demand() -> None:
    """Raise PackingError unless OR-Tools can be imported."""
    if not is_installed():
        raise PackingError("OR-Tools is not installed", fix=how_to_install("cpsat"))


def solve(problem: Problem, capacity: int, seconds: float) -> list[int] | None:
    """Return offsets inside a capacity, or None if none were found in time; one thread."""
    from ortools.sat.python import cp_model

    assert problem.intervals is not None
    lower, upper = np.asarray(problem.intervals.lower), np.asarray(problem.intervals.upper)
    model = cp_model.CpModel()
    steps, across, along = [], [], []
    for block, (size, alignment) in enumerate(zip(problem.sizes, problem.alignments, strict=True)):
        if size > capacity:
            return None
        fixed = problem.fixed[block]
        bounds = (fixed // alignment,) * 2 if fixed >= 0 else (0, (capacity - size) // alignment)
        step = model.new_int_var(*bounds, f"offset {block}")
        begin, width = int(lower[block]), int(upper[block] - lower[block])
        steps.append(step)
        across.append(model.new_fixed_size_interval_var(begin, width, f"life {block}"))
        along.append(
            model.new_interval_var(step * alignment, size, step * alignment + size, f"at {block}")
        )
    model.add_no_overlap_2d(across, along)
    model.add_cumulative(along, (upper - lower).tolist(), int(upper.max() - lower.min()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [
        solver.value(step) * alignment
        for step, alignment in zip(steps, problem.alignments, strict=True)
    ]
