from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.values.errors import ParseError
from plait.scheduler.packing.table import read_table

PLAIN = "id,lower,upper,size\na,0,3,8\nb,1,2,16\n"


def test_blocks_and_lives_are_read() -> None:
    table = read_table(PLAIN)
    assert [block.nbytes for block in table.blocks] == [8, 16]
    assert (list(table.lives.lower), list(table.lives.upper)) == ([0, 1], [3, 2])


def test_offsets_are_appended() -> None:
    text = read_table(PLAIN).with_offsets([16, 0])
    assert text == "id,lower,upper,size,offset\na,0,3,8,16\nb,1,2,16,0\n"


def test_columns_may_stand_in_any_order_and_others_are_kept() -> None:
    table = read_table('size,note,upper,id,lower\n8,"x, y",3,a,0\n')
    assert table.blocks[0].nbytes == 8
    assert table.with_offsets([4]).splitlines()[1] == '8,"x, y",3,a,0,4'


def test_a_column_of_offsets_is_replaced() -> None:
    table = read_table('id,offset,lower,upper,size,note\na,7,0,1,8,"x, y"\n')
    assert table.with_offsets([0]) == 'id,offset,lower,upper,size,note\na,0,0,1,8,"x, y"\n'


def test_older_names_of_columns_are_known() -> None:
    table = read_table("buffer,start,end,size\na,2,3,8\n")
    assert table.blocks[0].nbytes == 8
    assert (list(table.lives.lower), list(table.lives.upper)) == ([2], [3])
    assert table.with_offsets([0]) == "buffer,start,end,size,offset\na,2,3,8,0\n"


def test_a_column_that_means_nothing_may_have_an_older_name() -> None:
    assert read_table("id,lower,upper,size,start\na,0,3,8,x\n").blocks[0].nbytes == 8


def test_comments_and_empty_lines_are_kept() -> None:
    text = "# first\n\nid,lower,upper,size\n# between\na,0,3,8\n"
    assert read_table(text).with_offsets([0]) == (
        "# first\n\nid,lower,upper,size,offset\n# between\na,0,3,8,0\n"
    )


def test_lines_end_as_they_did() -> None:
    text = read_table(PLAIN.replace("\n", "\r\n")).with_offsets([16, 0])
    assert text == "id,lower,upper,size,offset\r\na,0,3,8,16\r\nb,1,2,16,0\r\n"


def test_a_header_alone_is_a_problem_without_blocks() -> None:
    assert read_table("id,lower,upper,size\n").with_offsets([]) == "id,lower,upper,size,offset\n"


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("", "no header", None),
        ("id,lower,size\n", "no column 'upper'", 1),
        ("id,lower,upper,size,size\n", "two columns", 1),
        ("id,lower,upper,size\na,0,3\n", "3 cells", 2),
        ("id,lower,upper,size\n# x\na,0,x,8\n", "upper is 'x'", 3),
        ("id,lower,upper,size\na,0,3,-8\n", "size is -8", 2),
        ("id,lower,upper,size\na,0,3,1.5\n", "whole number", 2),
        ("id,lower,upper,size\na,0,3,99999999999999999999999999\n", "cannot be", 2),
        ("id,lower,upper,size\na,3,0,8\n", "ends before", 2),
        ("id,lower,upper,size\na,0,3,8\na,0,3,8\n", "in line 2 already", 3),
        ('id,lower,upper,size\n"a,0,3,8\n', "not CSV", 2),
    ],
)
def test_damage_is_refused_with_its_line(text: str, what: str, line: int | None) -> None:
    with pytest.raises(ParseError, match=what) as caught:
        read_table(text, "file.csv")
    assert caught.value.at == ("file.csv" if line is None else f"file.csv, line {line}")
    assert caught.value.fix


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_table(text)
    except ParseError:
        return


@given(st.text(alphabet='id,lowerupsz\n"0123 #-', max_size=40))
def test_any_lines_after_a_header_are_read_or_refused(text: str) -> None:
    try:
        table = read_table("id,lower,upper,size\n" + text)
    except ParseError:
        return
    again = read_table(table.with_offsets([0] * len(table.blocks)))
    assert again.blocks == table.blocks
