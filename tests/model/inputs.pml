/* What comes from outside while a step runs: messages, a cancel; and a reply to a commit that is lost.
 *
 * One run of STEPS steps. Leases and doorbells are left out: any worker may claim a ready run at any
 * time. Ownership is a claim id that is never drawn twice (ownership.pml shows why). Each atomic block
 * is one statement in Postgres.
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif
/* How many messages people send (besides one cancel, perhaps). */
#ifndef MESSAGES
#define MESSAGES 2
#endif
/* A worker process dies; a slow one is taken for dead and goes on later; a commit's reply is lost. */
#ifndef FAULTS
#define FAULTS 2
#endif

/* What the commit compares besides the claim. */
#ifdef NO_INPUT_COMPARE
#define INPUTS_AS_SEEN true
#else
#define INPUTS_AS_SEEN (last_input_n == saw_input_n)
#endif
#ifdef NO_CANCEL_COMPARE
#define CANCEL_AS_SEEN true
#else
#define CANCEL_AS_SEEN (cancel_requested == saw_cancel)
#endif

#define NONE 0

/* Postgres: the run row, its owner's process. */
mtype = { RUNNING, SUCCEEDED, CANCELLED };
mtype status = RUNNING;
byte version, claim_id, claimed_by, committed_by;
bool owner_dead;
byte last_input_n;
bool cancel_requested;
byte next_seq, events;   /* the next event's number; one bit per number that was given */

/* Only the model knows these. */
byte claims;             /* claim ids are random: none comes twice */
byte live;               /* the process whose claim counts */
bool input_overlooked, cancel_overruled, step_lost, commit_denied, commit_invented, event_twice;
byte faults = FAULTS;

inline event(seq) {
    event_twice = event_twice || (events & (1 << (seq)));
    events = events | (1 << (seq))
}

inline clear_claim() {
    claim_id = NONE; claimed_by = NONE; owner_dead = false; live = NONE
}

inline finish(how) {
    printf("the run ends: %e\n", how);
    cancel_overruled = cancel_overruled || (cancel_requested && how == SUCCEEDED);
    status = how
}

inline die() {
    printf("worker %d dies\n", _pid);
    faults--;
    if
    :: claimed_by == _pid -> owner_dead = true
    :: else
    fi
}

inline see_row() {
    saw_input_n = last_input_n; saw_cancel = cancel_requested
}

/* Time goes on: without it Spin's search for fair cycles overlooks a run in which nothing more moves.
 * Process 0, so that workers are 1..WORKERS and 0 is nobody.
 */
bool time_goes_on = true;

active proctype Time() {
    do
    :: time_goes_on
    od
}

active [WORKERS] proctype Worker() {
    byte mine, at, saw_input_n;
    bool saw_cancel;
    bool committed;      /* only the model knows it: this result is in Postgres */

end_idle:
    atomic { status == RUNNING && claim_id == NONE ->
        claims++; claim_id = claims; mine = claims; claimed_by = _pid; owner_dead = false;
        live = _pid; at = version; see_row();
        printf("worker %d claims version %d, having seen %d inputs\n", _pid, at, saw_input_n) }

    /* The step runs. From here on its result is in hand. */
commit:
    if
    :: atomic { faults > 0 -> die(); goto leave }
    :: atomic {
           if
           :: claim_id == mine && INPUTS_AS_SEEN && CANCEL_AS_SEEN ->
               printf("worker %d commits step %d\n", _pid, at);
               input_overlooked = input_overlooked || last_input_n != saw_input_n;
               event(next_seq); next_seq++;
               version = at + 1; committed_by = mine; committed = true;
               clear_claim();
               if
               :: saw_cancel -> finish(CANCELLED)
               :: !saw_cancel && version == STEPS -> finish(SUCCEEDED)
               :: else
               fi;
               if
               :: true -> goto leave
               :: faults > 0 -> faults--; printf("the reply to worker %d is lost\n", _pid)
               fi
           :: else
           fi }
       /* It was refused, or nobody knows: the same commit again. */
       atomic { printf("worker %d is refused, or heard nothing\n", _pid);
           if
           :: claim_id == mine && INPUTS_AS_SEEN && CANCEL_AS_SEEN -> goto commit
           :: else
           fi }
    fi;

    /* Read the row: who owns it, and did the commit arrive? */
    if
    :: atomic { faults > 0 -> die(); goto leave }
    :: atomic {
           if
#ifndef NO_RETRY
           :: claim_id == mine -> printf("worker %d reads again\n", _pid); see_row(); goto commit
#endif
#ifndef NO_READ_BACK
           :: committed_by == mine && version == at + 1 && claim_id == NONE ->
               printf("worker %d: the commit did arrive\n", _pid)
#endif
           :: else ->
#ifdef TAKE_REFUSAL_FOR_SUCCESS
               printf("worker %d: surely it arrived\n", _pid);
               commit_invented = commit_invented || !committed
#else
               printf("worker %d: lost ownership\n", _pid);
               step_lost = step_lost || live == _pid;
               /* if another went on from it, to say so does no harm */
               commit_denied = commit_denied || (committed && version == at + 1 && claim_id == NONE)
#endif
           fi }
    fi;

leave:
    atomic { mine = NONE; at = 0; saw_input_n = 0; saw_cancel = false; committed = false;
        goto end_idle }
}

/* People send messages, under the row lock; `version` does not move. */
active proctype Sender() {
    byte left = MESSAGES, seq;
end:
    do
#ifdef SEQ_READ_BEFORE_LOCK
    :: atomic { status == RUNNING && left > 0 -> left--; seq = next_seq }
       atomic { last_input_n++; event(seq); next_seq = seq + 1; seq = 0 }
#else
    :: atomic { status == RUNNING && left > 0 ->
           printf("an input arrives\n");
           left--; last_input_n++; event(next_seq); next_seq++ }
#endif
    :: atomic { left > 0 -> left = 0 }
    od
}

/* A user cancels, once, or never. */
active proctype Canceller() {
end:
    atomic { status == RUNNING ->
        if
        :: printf("cancel asked\n");
            cancel_requested = true;
            event(next_seq); next_seq++;
            if
            :: claim_id == NONE -> finish(CANCELLED)
            :: else
            fi
        :: true
        fi }
}

#ifndef NO_REAPER
active proctype Reaper() {
end:
    do
    :: atomic { status == RUNNING && claim_id != NONE && (owner_dead || faults > 0) ->
           if
           :: owner_dead
           :: else -> faults--
           fi;
           printf("reaper takes the run back from worker %d\n", claimed_by);
           clear_claim();
           if
           :: cancel_requested -> finish(CANCELLED)
           :: else
           fi }
    od
}
#endif

/* Events are 1..n: no number twice, none left out. */
ltl inv5 { [] (!event_twice && events == (1 << next_seq) - 1) }
/* A cancel recorded before the end is the end. */
ltl cancel_wins { [] !cancel_overruled }
/* The owner of a live claim never drops a finished step. */
ltl inv20 { [] !step_lost }
/* No decision overlooks an input that was recorded before it. */
ltl inputs_seen { [] !input_overlooked }
/* A commit whose reply was lost is found, and none is made up. */
ltl inv10 { [] (!commit_denied && !commit_invented) }
/* The run ends. */
ltl inv8 { <> (status != RUNNING) }
/* Not a property: shows that the model gets to its end with every fault and input behind it. */
ltl reached { [] !(status == SUCCEEDED && faults == 0 && last_input_n == MESSAGES) }
