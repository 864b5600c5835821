"""The server of serve_fastapi.py behind Ray Serve: replicas on a cluster, each with its session.

Ray Serve starts replicas, deals requests, restarts what dies, and takes more replicas when there
are many requests; each replica is the whole server, with one session of plait for all requests that
come to it. Needs ``pip install '.[onnx]' magika==1.0.3 'ray[serve]'``.

    cd examples && serve run serve_with_ray:app
    curl --data-binary @README.md localhost:8000/identify
"""

from __future__ import annotations

import serve_fastapi
from ray import serve

AUTOSCALING = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 8}
"""A session runs requests at the same time, and gains from it; beyond eight there is a queue."""


@serve.ingress(serve_fastapi.create_app)  # a function: the app is made where it serves
class Identify:
    """One replica; the app does everything."""


deployed = serve.deployment(autoscaling_config=AUTOSCALING, max_ongoing_requests=32)(Identify)
app = deployed.bind()
