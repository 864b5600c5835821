"""The double of `cuda.core` has nothing that `cuda.core` lacks; needs no GPU."""

from __future__ import annotations

import cuda_core_double
import pytest
from cuda_core_double import CudaCoreDouble

core = pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install '.[cuda]'")

OF_ITS_OWN = {"resources", "sm"}
"""What the double's device has for two objects of `cuda.core`."""


@pytest.mark.parametrize("name", ["Context", "Device", "SMResource", "Stream"])
def test_objects_have_what_the_doubles_have(name: str) -> None:
    fake, its = getattr(cuda_core_double, name), getattr(core, name)
    public = {each for each in vars(fake) if not each.startswith("_")}
    public |= {"__cuda_stream__"} if name == "Stream" else set()
    data = {"core", "device", "numbers", "split_number"}  # of tuples, for the double alone
    missing = {each for each in public - data - OF_ITS_OWN if not hasattr(its, each)}
    assert missing == set()


def test_resources_are_found_where_the_double_has_them() -> None:
    assert hasattr(core.Device, "resources")
    assert hasattr(core.DeviceResources, "sm")


def test_options_take_what_the_doubles_take() -> None:
    assert core.SMResourceOptions(count=[8] * 16).count == [8] * 16
    assert core.ContextOptions(resources=[]).resources == []
    for name in ("SMResourceOptions", "ContextOptions", "Device"):
        assert hasattr(CudaCoreDouble, name)
