"""CUDA devices through CuPy: kernels, uploads and downloads on three streams.

Inside a plan the host never waits: `streams.queues` keeps the order between streams on the GPU, and
the threads of `streams.waiter` report events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from ..cache_folder import hash_sources
from ..constants import ConstantStore
from ..device import Capabilities, OnDone, Program, Support
from ..event import Event
from ..exchange import Loan
from ..memory import HOST, SHARED, Arena, View
from ..program import BoundProgram
from ..streams.device import QueuedDevice
from ..streams.program import QueuedProgram, mark_steps
from ..streams.queues import COMPUTE, SETUP, Queues
from .binding import Binder, Launcher, Libraries
from .choosing import Chooser
from .copies import Copies, Peers, is_direct, list_peer_memories
from .cublas import Cublas, find_cublas
from .cudnn import Cudnn, find_cudnn
from .driver import CuPy, find_device, start_error
from .exchange import CudaExchange, is_on_device
from .libraries import read_version
from .lowering import Lowering
from .memory import ALIGNMENT, CudaArena, HostPins, describe_arena
from .modules import Compiler, Modules
from .names import parse_name, parse_share
from .nvrtc import compile_cubin
from .parts import fits_in_queue
from .queues import open_queues
from .shares import CudaCore, MakeStream, Share, find_share, get_stream_maker, load_core
from .trials import Trials, Warmer

FindLibrary: TypeAlias = Callable[[], Any]


class _Opened(NamedTuple):
    cupy: CuPy
    queues: Queues
    pins: HostPins
    copies: Copies
    cublas: Cublas | None
    cudnn: Cudnn | None
    binder: Binder
    chooser: Chooser | None
    warmer: Warmer
    constants: ConstantStore
    peers: Peers
    exchange: CudaExchange


class CudaDevice(QueuedDevice[_Opened]):
    """An NVIDIA GPU.

    Parameters
    ----------
    name : str
        ``"cuda:N"``, with CuPy's number of the device. ``"cuda:N/A-B"`` is a share: its
        multiprocessors from A to B percent.
    cupy : module, optional
        A replacement of CuPy, which is imported at first use.
    core : module, optional
        A replacement of `cuda.core`, which creates shares and is imported for them.
    launch : callable, optional
        Launches a kernel of CuPy's on the current stream; by default, calls it.
    compiler : callable or None
        Compiles generated kernels; with ``functools.partial(compile_cubin, fast_math=True)`` for
        speed at the expense of the last bits. With None there are CuPy's kernels only.
    cublas : callable or None
        Returns cuBLAS, or None if it is missing. Without it, generated kernels compute products of
        matrices.
    cudnn : callable or None
        Returns cuDNN for convolutions, likewise.
    tf32 : bool, default False
        Let tensor cores multiply float32: several times faster, factors rounded to 10 bits.
    graphs : bool, default True
        Launch programs as CUDA graphs, as far as they can be captured.

    Notes
    -----
    While there is a program that measures, all work has the GPU's own times, mapped onto the host's
    clock. Otherwise it is timed from its submission until its completion is noticed.

    Submitted work cannot be cancelled: it is in the GPU's queue.
    """

    def __init__(
        self,
        name: str = "cuda:0",
        *,
        cupy: CuPy | None = None,
        core: CudaCore | None = None,
        launch: Launcher | None = None,
        compiler: Compiler | None = compile_cubin,
        cublas: FindLibrary | None = find_cublas,
        cudnn: FindLibrary | None = find_cudnn,
        tf32: bool = False,
        graphs: bool = True,
    ) -> None:
        super().__init__(name)
        self._name = parse_name(name)
        self._index = self._name.index
        self._memory = self._name.gpu
        self._cupy = cupy
        self._core = core
        self._launcher = launch
        self._compiler = compiler
        self._find_cublas = cublas
        self._find_cudnn = cudnn
        self._tf32 = tf32
        self._graphs = graphs
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The device's properties; the first access looks for the device."""
        if self._capabilities is None:
            cupy = self._find()
            try:
                # Without a context, which takes memory and time: most callers only plan.
                properties = cupy.cuda.runtime.getDeviceProperties(self._index)
            except Exception as error:
                raise start_error(error, cupy, self.name) from error
            self._capabilities = Capabilities(
                memory=self._memory,
                accesses=frozenset({self._memory}),
                alignment=ALIGNMENT,
                memory_bytes=int(properties["totalGlobalMem"]),
                native_waits=True,
                software=", ".join(self._software(cupy)),
                copies_from=list_peer_memories(cupy, self._index),
            )
        return self._capabilities

    def way_from(self, memory: str) -> str:
        """Describe the route of copies from another GPU's `memory`."""
        direct = is_direct(self._find(), self._index, parse_name(memory).index)
        return "directly" if direct else "staged by the driver in host memory"

    def supports(self, node: Node, call: Call) -> Support:
        return self._lowering.supports(node, call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return self._lowering.scratch(node, call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Create the streams and start the threads that wait for them; `cores` has no effect."""
        with self._life:
            if self._open is not None:
                return
            cupy, share = self._find(), self._share
            try:
                with cupy.cuda.Device(self._index):
                    make_stream = self._stream_maker(cupy, share)
                    queues = open_queues(cupy, self._index, self.name, make_stream)
            except Exception as error:
                raise start_error(error, cupy, self.name) from error
            try:
                self._open = self._equip(cupy, queues, make_stream)
            except Exception as error:
                # Otherwise the threads of a half-opened device would remain.
                queues.close()
                raise start_error(error, cupy, self.name) from error
            self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        assert memory == self._memory, memory
        opened = self._get_open()
        with opened.queues.current():
            return CudaArena(memory, nbytes, opened.cupy)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of `arena` at `offset`, as `spec` says; host memory becomes page-locked."""
        if isinstance(arena, CudaArena):
            if arena.index != self._index:
                opened = self._get_open()
                with opened.queues.current():
                    # At the first view, and not for all devices: many pairs of GPUs never meet.
                    opened.peers.reach(arena.index)
            return arena.view(offset, spec)
        assert arena.memory in (HOST, SHARED), arena.memory
        opened = self._get_open()
        with opened.queues.current():
            return opened.pins.view(arena, offset, spec)

    def describe(self, arena: Arena) -> bytes:
        """Return a description by which another process opens `arena`; see `ipc`."""
        assert isinstance(arena, CudaArena)
        opened = self._get_open()
        with opened.queues.current():
            return describe_arena(arena, opened.cupy)

    def takes(self, value: object) -> bool:
        """Return whether `value` is an array on this GPU, of CuPy, PyTorch or another library."""
        return is_on_device(value, self._index)

    def borrow(self, value: Any) -> Loan:
        """Return `value` as an array on this GPU; copies wait for its producer's current stream."""
        return self._get_open().exchange.borrow(value)

    def stage(self, array: Array) -> View:
        return self._get_open().exchange.stage(array)

    def room(self, spec: TensorSpec) -> View:
        return self._get_open().exchange.room(spec)

    def follow(self) -> None:
        """Make all streams wait for those that are current in CuPy and PyTorch."""
        self._get_open().exchange.follow()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Upload constants, compile kernels of `subgraph`, bind to `views`, record CUDA graphs.

        With `measure`, nodes are timed.
        """
        opened = self._get_open()
        with opened.queues.current(SETUP) as stream:
            if opened.chooser is not None:
                opened.chooser.choose(subgraph, opened.constants, views)
            for _ in range(len(subgraph.nodes) + 1):  # libraries may refuse them one by one
                constants, batches = opened.constants.place(self._lowering.constants(subgraph))
                parts = self._lowering.parts(subgraph, views)
                if opened.warmer.warm(subgraph, parts, constants, views):
                    break
            capture = self._graphs and not measure  # no event ends a node within a graph
            steps, held, traps = opened.binder.bind(
                *(subgraph, parts, views, constants, opened.queues.stream(COMPUTE)), capture=capture
            )
            if any(part.queued is None for part in parts):
                stream.synchronize()  # binding may have launched CuPy's kernels
                opened.cupy.get_default_memory_pool().free_all_blocks(stream)
        if measure:
            steps = mark_steps(steps, opened.queues.mark)
        run = BoundProgram(self.name, subgraph, steps, measure=False)
        starts_whole = measure and fits_in_queue(parts) and len(parts) > 1
        held = [*batches, *held]
        return opened.queues.add(QueuedProgram(subgraph, run, measure, held, traps, starts_whole))

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a copy from `source` to `target` after `waits`; its event calls `on_done`.

        It is on the stream of its direction; copies from another GPU are uploads.
        """
        return self._get_open().copies.queue(target, source, tuple(waits), on_done)

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread queues work; it returns whether it will poll."""
        self._get_open().queues.attend(attendant)

    def leave(self, attendant: Callable[[], bool]) -> None:
        """Remove `attendant`; threads wait for the work that it was to poll."""
        if self._open is not None:
            self._open.queues.leave(attendant)

    def poll(self) -> bool:
        """Complete all finished work without waiting; return whether any is in flight."""
        return self._open is not None and self._open.queues.poll()

    def watch(self) -> None:
        """Make threads wait for the work in flight."""
        if self._open is not None:
            self._open.queues.watch()

    def close(self) -> None:
        """Finish the queued work, end the threads, release streams and page-locked memory."""
        with self._life:
            opened = self._open
            if opened is not None:
                # First: the queued work uses all that is released below.
                opened.queues.close()
                opened.pins.close()
                with opened.cupy.cuda.Device(self._index):
                    for library in (opened.cublas, opened.cudnn):
                        if library is not None:
                            library.close()
                self._open = None

    def _equip(self, cupy: CuPy, queues: Queues, make_stream: MakeStream) -> _Opened:
        with queues.current():
            cublas = None if self._cublas is None else Cublas(self._cublas, tf32=self._tf32)
            cudnn = None if self._cudnn is None else Cudnn(self._cudnn)
            modules = None if self._compiler is None else Modules(cupy, self._index, self._compiler)
            exchange = CudaExchange(cupy, queues, self._index, self._memory)
        libraries = Libraries(cupy, modules, cublas, cudnn, self._launcher)
        binder = Binder(self.name, libraries, make_stream)
        trials = Trials(cupy, self._memory, binder, queues.stream(SETUP))
        chooser = None
        if self._graphs and (cublas is not None or cudnn is not None):  # timed work is recorded
            chooser = Chooser(self._lowering, cudnn, trials, self._hardware(cupy))
        # Kernels are loaded when a plan is opened, not with the first item.
        warmer = Warmer(self._lowering, trials, cudnn, records=self._graphs)
        copies = Copies(cupy, queues)
        constants = ConstantStore(self, self._memory, ALIGNMENT, copies.upload)
        pins, peers = HostPins(cupy), Peers(cupy, self._index)
        return _Opened(
            *(cupy, queues, pins, copies, cublas, cudnn, binder),
            *(chooser, warmer, constants, peers, exchange),
        )

    @cached_property
    def _share(self) -> Share | None:
        if parse_share(self.name) is None:
            return None
        self._core = self._core or load_core()
        return find_share(self.name, self._name, self._core)

    def _stream_maker(self, cupy: CuPy, share: Share | None) -> MakeStream:
        if share is None:
            return partial(cupy.cuda.Stream, non_blocking=True)
        return get_stream_maker(cupy, self._core, self._index, share)

    @cached_property
    def _lowering(self) -> Lowering:
        """The choice of kernels, known before there is a GPU, for planning."""
        return Lowering(
            generates=self._compiler is not None,
            multiplies=self._cublas is not None,
            convolves=self._cudnn is not None,
            tf32=self._tf32,
        )

    @cached_property
    def _cublas(self) -> Any:
        return self._compiler and self._find_cublas and self._find_cublas()

    @cached_property
    def _cudnn(self) -> Any:
        return self._compiler and self._find_cudnn and self._find_cudnn()

    def _hardware(self, cupy: CuPy) -> str:
        """Describe the hardware and software, such as `cupy`, which measured times depend on."""
        name = cupy.cuda.runtime.getDeviceProperties(self._index)["name"].decode()
        driver = cupy.cuda.runtime.driverGetVersion()
        code = hash_sources("codegen", "cuda")
        return f"plait {code}, {name}, CUDA {driver}, {', '.join(self._software(cupy))}"

    def _software(self, cupy: CuPy) -> Iterator[str]:
        yield f"cupy {cupy.__version__}"
        if self._lowering.generates:
            yield "generated kernels"
        if self._lowering.multiplies:
            version = read_version(self._cublas.cublasLtGetVersion)
            yield f"cublas {version}{' with tf32' if self._tf32 else ''}"
        if self._lowering.convolves:
            yield f"cudnn {read_version(self._cudnn.cudnnGetVersion)}"
        if self._share is not None:
            yield f"{self._share.multiprocessors} of {self._share.total} multiprocessors"

    def _find(self) -> CuPy:
        self._cupy = find_device(self.name, self._index, self._cupy)
        return self._cupy
