"""Server-sent events, cut into pieces anywhere."""

from __future__ import annotations

import pytest

from harness_api.client.sse import Frame, Parser

TEXT = 'id: 7\r\nevent: a\ndata: {"t": "x\u2028y\x85"}\n\n: ping\n\n'
TEXT += "data: one\rdata:two\r\rid: 9\ndata\n\n"
FRAMES = [
    Frame("a", '{"t": "x\u2028y\x85"}', "7"),
    Frame("message", "one\ntwo"),
    Frame("message", "", "9"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_pieces_of_any_size_give_the_same_frames(size):
    raw = TEXT.encode()
    parser = Parser()
    found = [f for i in range(0, len(raw), size) for f in parser.feed(raw[i : i + size])]
    assert found == FRAMES


def test_every_cut_in_two_gives_the_same_frames():
    raw = TEXT.encode()
    for cut in range(len(raw)):
        parser = Parser()
        assert parser.feed(raw[:cut]) + parser.feed(raw[cut:]) == FRAMES, cut


def test_a_frame_without_its_end_is_not_given():
    assert Parser().feed(b"id: 1\ndata: x\n") == []
