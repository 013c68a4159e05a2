"""One mechanism broken at a time: the simulator must go red without it, or it proves nothing."""

from __future__ import annotations

from typing import Final

MUTATIONS: Final = {
    "fence": "commits and intents do not compare who owns the run",
    "claim_id": "ownership is the fence and whether the run is claimed, without the random id",
    "token": "the ownership token is counted by Redis instead of minted by Postgres",
    "cas": "commits do not compare version, inputs seen and cancel",
    "inputs": "commits do not compare the inputs that were seen",
    "intent": "a write starts without an intent in the ledger",
    "intent_cancel": "an intent does not ask whether a cancel was requested",
    "dead_intent": "an intent without a result is run again instead of becoming unknown",
    "reaper": "nobody clears the claims of the dead",
    "give_back": "a claim whose reply was lost is not given back",
    "ring": "nobody rings again for a lost doorbell",
    "reread": "a refused commit is dropped instead of read and advanced again",
    "readback": "a commit whose reply was lost is not read back",
    "slots": "commits do not count slots",
    "turns": "the end of a turn is not charged",
    "limits": "admission does not look at the room that is left",
    "wait": "a delay is not stored",
    "async_commit": "commits do not wait for the disk",
    "term": "writes of the scheduler do not compare the leader's term",
    "watch": "silence counts although Postgres was away",
    "seq": "an intent does not take an event number",
    "suspect": "a run whose processes died is rung for and claimed like any other",
    "child": "a call does not look for the child that it has already",
    "forsaken": "nobody stops the children of a run that has ended",
    "join": "a parent that waits for its children is not woken",
    "open_call": "a run that ends leaves its calls open",
    "pause": "a pause that was asked for is forgotten",
    "steer": "a message for the model is forgotten",
    "approval": "a call that needs approval is made without it",
    "decided": "a decision about a call is forgotten while a step is under way",
    "key": "runs of a concurrency key are let go without counting",
    "behind": "a run begins before the one before it in its session has ended",
    "held": "nobody lets go of runs that are held back",
}
