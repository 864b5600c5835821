"""CUDA devices through CuPy: kernels, uploads and downloads on three streams.

Nothing inside a plan waits on the host: `queued.queues` keeps the order between streams on the GPU,
and the threads of `queued.waiter` tell when events have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.tensor import Array, TensorSpec
from ...version import VERSION
from ..constants import ConstantStore
from ..device import Capabilities, OnDone, Program, Support
from ..event import Event
from ..exchange import Loan
from ..memory import HOST, SHARED, Arena, View
from ..program import BoundProgram
from ..streams.device import QueuedDevice
from ..streams.program import QueuedProgram, marked
from ..streams.queues import Queues
from .binding import Binder, Launcher, Libraries
from .choosing import Chooser
from .copies import Copies
from .cublas import Cublas, find_cublas
from .cublas import version_of as cublas_version
from .cudnn import Cudnn, find_cudnn
from .cudnn import version_of as cudnn_version
from .driver import CuPy, cuda_names, find_device, start_error
from .exchange import CudaExchange, is_on_device
from .ipc import describe
from .lowering import Lowering
from .memory import ALIGNMENT, CudaArena, HostPins
from .modules import Compiler, Modules
from .names import parsed, share_of
from .nvrtc import compile_cubin
from .parts import fits_in_queue
from .peers import Peers, is_direct, peer_memories
from .queues import open_queues
from .shares import CudaCore, MakeStream, Share, find_share, load_core, stream_maker
from .trials import Trials
from .warming import Warmer

__all__ = ["CudaDevice", "cuda_names"]

FindLibrary: TypeAlias = Callable[[], Any]


class _Opened(NamedTuple):
    """What there is only while a device is open."""

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
        ``"cuda:N"``; N is CuPy's number of the device. ``"cuda:N/A-B"`` is a share of it: of its
        multiprocessors those from A to B percent.
    cupy : module, optional
        What to use for CuPy; imported when the device is first looked at, if left out.
    core : module, optional
        What to use for `cuda.core`, which makes shares; imported for those, if left out.
    launch : callable, optional
        How a kernel of CuPy's gets onto the current stream; it is called, if left out.
    compiler : callable or None
        Compiles generated kernels; with ``functools.partial(compile_cubin, fast_math=True)`` for
        speed at the expense of the last bits. With None there are CuPy's kernels only.
    cublas : callable or None
        Returns cuBLAS, or None where there is none; products of matrices are left to generated
        kernels then, and with None.
    cudnn : callable or None
        The same of cuDNN and convolutions.
    tf32 : bool, default False
        Have tensor cores multiply float32: several times faster, factors rounded to 10 bits.
    graphs : bool, default True
        Launch what a program queues as CUDA graphs, where it can be captured.

    Notes
    -----
    Programs that measure, and all copies once there is such a program, have the GPU's own times,
    mapped onto the host's clock. Other work is timed from its submission until it is known to be
    complete.

    What was submitted cannot be cancelled: it is queued on the GPU already.
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
        self._name = parsed(name)
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
        """What it is like; looks for the device when first asked."""
        if self._capabilities is None:
            cupy = self._find()
            try:
                # What needs no context, which takes memory and time: most who ask only plan.
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
                copies_from=peer_memories(cupy, self._index),
            )
        return self._capabilities

    def way_from(self, memory: str) -> str:
        """Say whether copies from another GPU's memory are made by the hardware alone."""
        direct = is_direct(self._find(), self._index, parsed(memory).index)
        return "directly" if direct else "staged by the driver in host memory"

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether there is a kernel; needs no device."""
        return self._lowering.supports(node, call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the kernel's scratch buffers."""
        return self._lowering.scratch(node, call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Make the streams and start the threads that wait for them."""
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
                # Half opened, it would keep threads that nobody ends.
                queues.close()
                raise start_error(error, cupy, self.name) from error
            self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate on the GPU."""
        assert memory == self._memory, memory
        opened = self._opened()
        with opened.queues.current():
            return CudaArena(memory, nbytes, opened.cupy)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of a GPU's memory, or of host memory, which becomes page-locked."""
        if isinstance(arena, CudaArena):
            if arena.index != self._index:
                opened = self._opened()
                with opened.queues.current():
                    # When first viewed, not for all: many pairs of GPUs never meet.
                    opened.peers.reach(arena.index)
            return arena.view(offset, spec)
        assert arena.memory in (HOST, SHARED), arena.memory
        opened = self._opened()
        with opened.queues.current():
            return opened.pins.view(arena, offset, spec)

    def describe(self, arena: Arena) -> bytes:
        """Return what another process opens an arena by: see `ipc`."""
        assert isinstance(arena, CudaArena)
        opened = self._opened()
        with opened.queues.current():
            return describe(arena, opened.cupy)

    def takes(self, value: object) -> bool:
        """Say whether a value is an array on this GPU, of CuPy, PyTorch, or any other library."""
        return is_on_device(value, self._index)

    def borrow(self, value: Any) -> Loan:
        """Return an array on this GPU; copies of it wait for its producer's current stream."""
        return self._opened().exchange.borrow(value)

    def stage(self, array: Array) -> View:
        """Return a page-locked copy of a host's array."""
        return self._opened().exchange.stage(array)

    def room(self, spec: TensorSpec) -> View:
        """Return an array of CuPy's."""
        return self._opened().exchange.room(spec)

    def follow(self) -> None:
        """Have all streams wait for those that are current in CuPy and PyTorch."""
        self._opened().exchange.follow()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Upload constants, compile and bind kernels, and record them as CUDA graphs."""
        opened = self._opened()
        with opened.queues.current() as stream:
            if opened.chooser is not None:
                opened.chooser.choose(subgraph, opened.constants, stream)
            is_warm = False
            while not is_warm:
                constants, batches = opened.constants.place(self._lowering.constants(subgraph))
                parts = self._lowering.parts(subgraph, views)
                is_warm = opened.warmer.warm(subgraph, parts, constants, stream)
            capture = self._graphs and not measure  # no event ends a node within a graph
            steps, held, traps = opened.binder.bind(
                subgraph, parts, views, constants, stream, capture=capture
            )
            if any(part.queued is None for part in parts):
                stream.synchronize()  # CuPy's kernels may have computed while they were bound
        if measure:
            opened.copies.timed = True
            steps = marked(steps, opened.queues.mark)
        run = BoundProgram(self.name, subgraph, steps, measure=False)
        starts_whole = measure and fits_in_queue(parts) and len(parts) > 1
        return QueuedProgram(subgraph, run, measure, (*batches, *held), traps, starts_whole)

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue on the stream of that direction; from another GPU, on that of uploads."""
        return self._opened().copies.queue(target, source, tuple(waits), on_done)

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread queues work; True if it will poll for that."""
        self._opened().queues.attend(attendant)

    def leave(self, attendant: Callable[[], bool]) -> None:
        """Call an attendant no more, and have threads wait for what it was to poll."""
        if self._open is not None:
            self._open.queues.leave(attendant)

    def poll(self) -> bool:
        """Complete what is over, without waiting; say whether something is under way."""
        return self._open is not None and self._open.queues.poll()

    def watch(self) -> None:
        """Have threads wait for what is under way."""
        if self._open is not None:
            self._open.queues.watch()

    def close(self) -> None:
        """Finish what is queued, end the threads, release streams and page-locked memory."""
        with self._life:
            opened = self._open
            if opened is not None:
                # First: what is queued uses all that is let go of below.
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
        trials = Trials(cupy, self._memory, binder)
        chooser = None
        if self._graphs and (cublas is not None or cudnn is not None):  # what is timed is recorded
            chooser = Chooser(self._lowering, cudnn, trials, self._hardware(cupy))
        # Kernels are loaded when a plan is opened, not when the first item comes.
        warmer = Warmer(self._lowering, trials)
        copies = Copies(cupy, queues)
        constants = ConstantStore(self, self._memory, ALIGNMENT, copies.upload)
        pins, peers = HostPins(cupy), Peers(cupy, self._index)
        return _Opened(
            *(cupy, queues, pins, copies, cublas, cudnn, binder),
            *(chooser, warmer, constants, peers, exchange),
        )

    @cached_property
    def _share(self) -> Share | None:
        """Its multiprocessors; None for all of them."""
        if share_of(self.name) is None:
            return None
        self._core = self._core or load_core()
        return find_share(self.name, self._name, self._core)

    def _stream_maker(self, cupy: CuPy, share: Share | None) -> MakeStream:
        if share is None:
            return partial(cupy.cuda.Stream, non_blocking=True)
        return stream_maker(cupy, self._core, self._index, share)

    @cached_property
    def _lowering(self) -> Lowering:
        """How nodes are computed: known before there is a GPU, to plan for one."""
        return Lowering(
            generates=self._compiler is not None,
            multiplies=self._cublas is not None,
            convolves=self._cudnn is not None,
            tf32=self._tf32,
        )

    @cached_property
    def _cublas(self) -> Any:
        if self._find_cublas is None or self._compiler is None:
            return None
        return self._find_cublas()

    @cached_property
    def _cudnn(self) -> Any:
        if self._find_cudnn is None or self._compiler is None:
            return None
        return self._find_cudnn()

    def _hardware(self, cupy: CuPy) -> str:
        """Return what times depend on: the GPU, the driver, and versions of software."""
        name = cupy.cuda.runtime.getDeviceProperties(self._index)["name"].decode()
        driver = cupy.cuda.runtime.driverGetVersion()
        return f"plait {VERSION}, {name}, CUDA {driver}, {', '.join(self._software(cupy))}"

    def _software(self, cupy: CuPy) -> Iterator[str]:
        yield f"cupy {cupy.__version__}"
        if self._lowering.generates:
            yield "generated kernels"
        if self._lowering.multiplies:
            yield f"cublas {cublas_version(self._cublas)}{' with tf32' if self._tf32 else ''}"
        if self._lowering.convolves:
            yield f"cudnn {cudnn_version(self._cudnn)}"
        if self._share is not None:
            yield f"{self._share.multiprocessors} of {self._share.total} multiprocessors"

    def _find(self) -> CuPy:
        self._cupy = find_device(self.name, self._index, self._cupy)
        return self._cupy
