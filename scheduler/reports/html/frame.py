"""The page in a notebook: inside of a frame of its own, as long as it is not too large for one."""

from __future__ import annotations

import html

from ....graph.printing import bytes_text
from ...plans.plan import Plan
from ...profile import Profile
from ...simulation.simulation import Simulation
from .document import document
from .page import page

MOST_NODES = 20_000
MOST_BYTES = 5_000_000
"""Of the page: notebooks keep it in their file, every time that it is shown."""

HEIGHT = 640
"""Pixels of the frame; the page scrolls inside of it."""


def framed(shown: Plan | Profile | Simulation) -> str:
    """Return markup that shows a page, or a line that says how to have it where it is too large.

    The frame is sandboxed: names in a plan come from files, and the notebook has the user's rights.
    """
    plan = shown if isinstance(shown, Plan) else getattr(shown, "plan", None)
    if plan is not None and len(plan.graph.nodes) > MOST_NODES:
        return _instead(shown, f"{len(plan.graph.nodes):,} nodes")
    profile = shown if isinstance(shown, Profile) else None
    simulation = shown if isinstance(shown, Simulation) else None
    text = page(document(plan, profile, simulation))
    if len(text) > MOST_BYTES:
        return _instead(shown, bytes_text(len(text)))
    return (
        f'<iframe srcdoc="{html.escape(text)}" sandbox="allow-scripts" title="plait" '
        f'style="width: 100%; height: {HEIGHT}px; border: 1px solid #8888"></iframe>'
    )


def _instead(shown: Plan | Profile | Simulation, size: str) -> str:
    how = "save_html('page.html')" if not isinstance(shown, Simulation) else "plan.save_html(...)"
    text = f"{shown!r}: {size} are too many for a notebook; .{how} writes the page to a file"
    return f"<p>{html.escape(text)}</p>"
