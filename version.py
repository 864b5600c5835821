"""The version: parent and worker process compare it, and users may ask for it."""

VERSION = "0.1.0"
