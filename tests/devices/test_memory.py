from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.errors import DeviceMemoryError
from plait.devices.memory import (
    ALIGNMENT,
    HOST,
    SHARED,
    TOUCHED_BYTES,
    Arena,
    HostSlab,
    SharedArena,
    check_fits,
    host_arena,
    host_view,
)
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import TensorSpec


@pytest.fixture(params=["host", "shared"])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    made = host_arena(1024) if request.param == "host" else SharedArena(1024)
    yield made
    made.close()


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


@given(st.integers(1, 5000))
def test_a_host_arena_is_aligned_zeroed_and_as_large_as_asked(nbytes: int) -> None:
    arena = host_arena(nbytes)
    assert (arena.memory, arena.nbytes, arena.buffer.nbytes) == (HOST, nbytes, nbytes)
    assert arena.buffer.ctypes.data % ALIGNMENT == 0
    assert not arena.buffer.any()


def test_arenas_of_a_slab_lie_apart_in_whole_pages() -> None:
    slab = HostSlab(5000)
    arenas = [slab.carve(nbytes) for nbytes in (1000, 3000, 4200, 4128, 1)]
    pages = slab._pages
    assert (pages.ctypes.data % mmap.PAGESIZE, pages.nbytes) == (0, 2 * mmap.PAGESIZE)
    found = [a and (a.buffer.ctypes.data - pages.ctypes.data, a.nbytes) for a in arenas]
    assert found == [(0, 1000), (1024, 3000), None, (4032, 4128), None]
    assert all(a is None or a.pages is pages for a in arenas)


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_huge_host_arena_takes_memory_as_it_is_written() -> None:
    before = resident_pages()
    arena = host_arena(1 << 33)
    arena.buffer[1 << 32] = 1
    taken = (resident_pages() - before) * mmap.PAGESIZE
    arena.close()
    assert taken < 2 * TOUCHED_BYTES


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 100_000])
def test_a_shared_arena_is_aligned_zeroed_and_as_large_as_asked(nbytes: int) -> None:
    arena = SharedArena(nbytes)
    assert (arena.memory, arena.nbytes, arena.buffer.nbytes) == (SHARED, nbytes, nbytes)
    assert arena.buffer.ctypes.data % ALIGNMENT == 0
    assert not arena.buffer.any()
    arena.close()


def test_a_view_is_the_arena_s_bytes_at_its_offset(arena: Arena) -> None:
    view = host_view(arena, 128, TensorSpec("int32", (2, 3)))
    view.array[...] = np.arange(6).reshape(2, 3)
    assert arena.buffer[128:152].view(np.int32).tolist() == [0, 1, 2, 3, 4, 5]
    assert not arena.buffer[:128].any()
    assert not arena.buffer[152:].any()


def test_a_view_remembers_where_it_lies(arena: Arena) -> None:
    spec = TensorSpec("float32", (4,))
    view = host_view(arena, 64, spec)
    assert (view.arena, view.offset, view.spec) == (arena, 64, spec)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_have_views(arena: Arena, shape: tuple[int, ...]) -> None:
    array = host_view(arena, 960, TensorSpec("float64", shape)).array
    assert (array.shape, array.dtype) == (shape, np.float64)


def test_an_empty_tensor_fits_at_the_very_end(arena: Arena) -> None:
    assert host_view(arena, 1024, TensorSpec("float32", (0,))).array.size == 0


@given(st.integers(-2, 20), st.integers(0, 1100))
def test_a_view_fits_exactly_when_its_bytes_are_in_the_arena(step: int, size: int) -> None:
    offset, spec = step * ALIGNMENT, TensorSpec("uint8", (size,))
    arena = Arena(HOST, 1024, np.zeros(1024, np.uint8))
    if 0 <= offset <= offset + size <= 1024:
        check_fits(arena, offset, spec)
    else:
        with pytest.raises(DeviceMemoryError):
            check_fits(arena, offset, spec)


@pytest.mark.parametrize("offset", [-64, 32, 1024])
def test_a_view_outside_its_arena_or_unaligned_is_refused(arena: Arena, offset: int) -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        host_view(arena, offset, TensorSpec("float32", (4,)))
    assert str(caught.value) == (
        f"float32[4] does not fit at offset {offset} of an arena of 1024 bytes "
        f"in memory {arena.memory!r} (alignment 64)\n"
        "  fix: report this: the memory plan is wrong"
    )


def test_a_device_may_ask_for_a_wider_alignment() -> None:
    arena = Arena(HOST, 1024, np.zeros(1024, np.uint8))
    spec = TensorSpec("uint8", (1,))
    check_fits(arena, 256, spec, alignment=256)
    with pytest.raises(DeviceMemoryError, match="alignment 256"):
        check_fits(arena, 64, spec, alignment=256)


def test_a_view_of_a_symbolic_tensor_is_refused(arena: Arena) -> None:
    with pytest.raises(ShapeError):
        host_view(arena, 0, TensorSpec("float32", ("n",)))


def test_a_view_of_a_closed_arena_is_refused(arena: Arena) -> None:
    arena.close()
    with pytest.raises(DeviceMemoryError) as caught:
        host_view(arena, 0, TensorSpec("float32", (4,)))
    assert str(caught.value) == "the arena is closed\n  fix: report this: a view is made too late"


def test_an_arena_may_be_closed_twice(arena: Arena) -> None:
    arena.close()
    arena.close()


def test_a_view_outlives_its_arena(arena: Arena) -> None:
    view = host_view(arena, 0, TensorSpec("uint8", (3,)))
    view.array[...] = (1, 2, 3)
    arena.close()
    assert view.array.tolist() == [1, 2, 3]


def test_another_mapping_of_the_descriptor_sees_the_same_bytes() -> None:
    arena = SharedArena(256)
    with mmap.mmap(arena.fd, 256) as elsewhere:
        arena.buffer[10] = 42
        assert elsewhere[10] == 42
        elsewhere[11] = 43
        assert arena.buffer[11] == 43
    arena.close()


def test_closing_a_shared_arena_closes_its_descriptor_only_once() -> None:
    arena = SharedArena(256)
    fd = arena.fd
    arena.close()
    reused = os.open(os.devnull, os.O_RDONLY)
    assert reused == fd
    arena.close()
    os.close(reused)


def test_too_large_a_host_arena_is_refused() -> None:
    with pytest.raises(DeviceMemoryError) as caught:
        host_arena(2**60)
    assert str(caught.value) == (
        f"cannot allocate {2**60} bytes of host memory\n  fix: free memory, or lower max_in_flight"
    )


@pytest.mark.parametrize("nbytes", [2**60, 2**70])
def test_too_large_a_shared_arena_is_refused_and_leaves_no_descriptor(nbytes: int) -> None:
    before = open_descriptors()
    with pytest.raises(DeviceMemoryError) as caught:
        SharedArena(nbytes)
    assert caught.value.what.startswith(f"cannot share {nbytes} bytes of memory: ")
    assert caught.value.fix == "free memory, lower max_in_flight, or use fewer devices"
    assert open_descriptors() == before


def test_sharing_works_where_nameless_files_are_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arena: Any = SharedArena(100)
    arena.buffer[99] = 1
    assert list(tmp_path.iterdir()) == []
    arena.close()
