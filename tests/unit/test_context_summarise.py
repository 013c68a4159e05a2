"""Asking for a summary in pieces that fit, and what happens when the model does not play along."""

from __future__ import annotations

import pytest

from harness_common.core.context_view import Shown
from harness_common.core.errors import Limited, Permanent
from harness_common.core.message import Message, Text, user
from harness_common.core.tokens import text_tokens
from harness_worker.context.summarise import Said, summarise

OLDER = [
    Shown(user("Count the cars."), "1"),
    *(Shown(Message("assistant", (Text(f"Round {n}. " + "word " * 60),)), str(n)) for n in
      range(2, 30)),
]  # fmt: skip


class Model:
    """Answers what `says` gives; refuses a question of more than `window` tokens."""

    def __init__(self, says=lambda question: "Done:\n- much", window=10**9):
        self.says, self.window = says, window
        self.asked: list[str] = []

    async def __call__(self, system: str, question: str) -> Said:
        if text_tokens(system + question) > self.window:
            raise Permanent("too long", code="CONTEXT_OVERFLOW")
        self.asked.append(question)
        said = self.says(question)
        if isinstance(said, Exception):
            raise said
        return Said(said)


async def go(model, piece_tokens=100_000, summary_tokens=300):
    return await summarise(OLDER, model, piece_tokens=piece_tokens, summary_tokens=summary_tokens)


async def test_one_piece_is_asked_once():
    model = Model()
    made = await go(model)
    assert (made.how, made.body, len(model.asked)) == ("summarised", "Done:\n- much", 1)
    assert "Round 29." in model.asked[0]


async def test_many_pieces_are_summarised_and_their_summaries_joined():
    model = Model(lambda q: "Done:\n- part" if "(part" in q else "Done:\n- whole")
    made = await go(model, piece_tokens=500)
    assert made.body == "Done:\n- whole"
    assert len(model.asked) >= 4
    assert model.asked[-1].count("[summary of part") == len(model.asked) - 1
    assert all(text_tokens(q) <= 560 for q in model.asked)


async def test_a_piece_that_is_refused_is_halved_until_it_fits():
    """Its own prompt never overflows, even where the window is smaller than we believe."""
    model = Model(window=700)
    made = await go(model, piece_tokens=2_000)
    assert made.how == "summarised"
    assert model.asked


async def test_a_window_that_nothing_fits_gives_the_fixed_form_by_code():
    made = await go(Model(window=50), piece_tokens=2_000)
    assert made.how == "extracted"
    assert made.note.startswith("CONTEXT_OVERFLOW")
    assert "Count the cars." in made.body


@pytest.mark.parametrize(
    ("says", "note"),
    [("", "the model gave no summary"), ("word " * 2_000, "the summary came out too long")],
)
async def test_a_useless_summary_gives_the_fixed_form(says, note):
    made = await go(Model(lambda _: says))
    assert (made.how, made.note) == ("extracted", note)
    assert text_tokens(made.body) <= 340


async def test_a_model_that_says_ever_more_does_not_go_round_for_ever():
    model = Model(lambda q: "word " * 900)
    made = await go(model, piece_tokens=500)
    assert made.how == "extracted"
    assert len(model.asked) <= 64


async def test_a_model_that_is_gone_gives_the_fixed_form_and_a_busy_one_is_waited_for():
    gone = Permanent("no such model", code="MODEL_NOT_FOUND")
    made = await go(Model(lambda _: gone))
    assert (made.how, made.note) == ("extracted", "MODEL_NOT_FOUND: no such model")
    with pytest.raises(Limited):
        await go(Model(lambda _: Limited("busy", retry_after_s=1.0, scope="s")))
