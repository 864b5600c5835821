"""Fixtures for tests that every device must pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from every_device import SUBJECTS, Subject, parameters
from plait.devices import Device


@pytest.fixture(scope="module", params=parameters(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    """Return each kind of device in turn."""
    assert isinstance(request.param, Subject)
    return request.param


@pytest.fixture(scope="module")
def device(subject: Subject) -> Iterator[Device]:
    """Return an open device for all tests that leave it as it was."""
    with subject.opened() as opened:
        yield opened
