from __future__ import annotations

import pickle

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.errors import DeviceError, KernelError, RemoteError
from plait.devices.worker.remote_errors import MAX_CAUSES, MAX_TEXT, describe, rebuild
from plait.graph.values.errors import Argument, Fix, GraphError, PlaitError, ShapeError, WireError


class CustomError(Exception):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def sent(error: Exception) -> Exception:
    """Return an error after its way through a message."""
    return rebuild(msgpack.unpackb(msgpack.packb(describe(error))), "worker:7")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.parametrize("kind", [PlaitError, ShapeError, KernelError, GraphError, DeviceError])
def test_a_plait_error_keeps_its_class_and_its_three_parts(kind: type[PlaitError]) -> None:
    back = sent(kind("wrong", at="here", fix="do it right"))
    assert type(back) is kind
    assert isinstance(back, PlaitError)
    assert (back.what, back.at, back.fix) == ("wrong", "here", "do it right")


def test_a_fix_keeps_its_arguments() -> None:
    fix = Fix("plan with a wider bound: ", Argument("bounds", {"n": (2, 64), "m": 3}))
    back = sent(KernelError("too long", fix=fix))
    assert isinstance(back, KernelError)
    assert isinstance(back.fix, Fix)
    assert (back.fix, back.fix.parts) == (fix, fix.parts)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad value"),
        KeyError("missing"),
        ZeroDivisionError(),
        FileNotFoundError(2, "No such file or directory"),
        IndexError(-1),
        RuntimeError("two", 2),
    ],
    ids=repr,
)
def test_a_builtin_error_is_made_again_from_its_arguments(error: Exception) -> None:
    back = sent(error)
    assert type(back) is type(error)
    assert back.args == error.args


def test_a_builtin_error_whose_text_is_more_than_its_arguments_keeps_its_text() -> None:
    with pytest.raises(FileNotFoundError) as caught, open("/nowhere/at all"):
        pass
    assert str(sent(caught.value)) == str(caught.value)


@pytest.mark.parametrize(
    "argument", [2**70, object(), ["a list"], b"bytes"], ids=lambda one: type(one).__name__
)
def test_arguments_that_do_not_travel_arrive_as_text(argument: object) -> None:
    error = ValueError(argument)
    back = sent(error)
    assert type(back) is ValueError
    assert str(back) == str(error)


def test_an_error_of_another_class_arrives_by_name_and_text() -> None:
    back = sent(CustomError("its text"))
    assert type(back) is DeviceError
    assert "CustomError: its text" in str(back)


def test_a_builtin_error_that_text_cannot_make_arrives_by_name_and_text() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"\xff".decode()
    back = sent(caught.value)
    assert type(back) is DeviceError
    assert "UnicodeDecodeError: 'utf-8' codec can't decode" in str(back)


def test_causes_arrive_in_order_with_stand_ins_for_those_of_unknown_class() -> None:
    root = raised(ValueError("root"))
    middle = raised(CustomError("middle"), root)
    back = sent(raised(KernelError("outer"), middle))
    assert type(back) is KernelError
    assert isinstance(back.__cause__, RemoteError)
    assert (back.__cause__.kind, back.__cause__.text) == (f"{__name__}.CustomError", "middle")
    assert not back.__cause__.traceback  # that of the innermost is told
    assert type(back.__cause__.__cause__) is ValueError
    assert back.__cause__.__cause__.__cause__ is None


def test_a_stand_in_for_the_innermost_cause_has_its_traceback_and_can_be_pickled() -> None:
    back = sent(raised(KernelError("outer"), raised(CustomError("root")))).__cause__
    assert isinstance(back, RemoteError)
    assert "in raised" in back.traceback
    again = pickle.loads(pickle.dumps(back))
    assert (again.kind, again.text, again.traceback) == (back.kind, back.text, back.traceback)


class HollowError(PlaitError):
    def __init__(self) -> None:
        Exception.__init__(self, "none of plait's parts")


def test_a_plait_error_of_the_user_s_that_lacks_its_parts_arrives_as_text() -> None:
    assert "HollowError" in str(sent(raised(HollowError())))


def test_the_note_shows_where_the_innermost_cause_was_raised() -> None:
    back = sent(raised(KernelError("outer"), raised(ValueError("root"))))
    (note,) = back.__notes__
    assert "Traceback in worker:7" in note
    assert "in raised" in note
    assert "ValueError: root" in note


def test_an_error_that_was_never_raised_has_no_note() -> None:
    assert not hasattr(sent(ValueError("made, not raised")), "__notes__")


def test_an_error_without_a_text_is_named() -> None:
    assert "<unprintable MuteError>" in str(sent(raised(MuteError())))


@pytest.mark.parametrize("error", [ValueError("x" * 10**6), GraphError("x" * 10**6)], ids=type)
def test_long_texts_are_cut(error: Exception) -> None:
    assert len(msgpack.packb(describe(raised(error)))) < 4 * MAX_TEXT
    assert "characters more" in str(sent(raised(error)))


def test_a_chain_of_causes_without_end_is_cut() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    link: BaseException | None = sent(first)
    for _ in range(MAX_CAUSES):
        assert link is not None
        link = link.__cause__
    assert link is None


nothing = st.none() | st.integers() | st.text(max_size=5)
junk = st.recursive(nothing, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


def test_arguments_of_any_depth_describe_no_error() -> None:
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    for links in ([["E", deep, None, None]], [["E", ["x"], None, None], ["E", deep, None, None]]):
        with pytest.raises(WireError, match="describes no error"):
            rebuild([links, ""], "worker:7")


@given(st.lists(junk, max_size=3))
def test_junk_is_an_error_or_a_wire_error(description: list[object]) -> None:
    try:
        back = rebuild(description, "worker:7")
    except WireError:
        return
    assert isinstance(back, Exception)


def test_arguments_by_name_describe_no_error() -> None:
    with pytest.raises(WireError, match="describes no error"):
        rebuild([[["KernelError", {}, "node 'a'", "mend it"]], ""], "worker:0")
