/* A tool call with an effect: intent, effect, result, commit; its recovery; cancel; a person.
 *
 * One `write` call of one tools step. Leases and doorbells are left out: any worker may claim a ready
 * run at any time, which allows more than they do. Ownership is a claim id that is never drawn twice
 * (ownership.pml shows why). Each atomic block is one statement in Postgres.
 */
#ifndef WORKERS
#define WORKERS 2
#endif
/* A worker process dies, or a slow one is taken for dead and goes on later. */
#ifndef FAULTS
#define FAULTS 3
#endif
/* How often a person may have an unknown effect run again. */
#ifndef AGAIN
#define AGAIN 1
#endif

/* What an intent compares. */
#ifdef INTENT_WITHOUT_OWNER
#define INTENT_OWNED true
#else
#define INTENT_OWNED (claim_id == mine)
#endif
#ifdef INTENT_WITHOUT_LEDGER
#define INTENT_AUTHORISED true
#elif defined(GUESS)
#define INTENT_AUTHORISED (call == saw_call && attempt == prior)
#else
#define INTENT_AUTHORISED (call == PROPOSED && attempt == prior)
#endif
#ifdef INTENT_AFTER_CANCEL
#define INTENT_ALLOWED true
#else
#define INTENT_ALLOWED (!cancel_requested)
#endif
/* Whether a dead owner's intent is simply tried again. */
#ifdef GUESS
#define GUESSED (saw_call == STARTED)
#else
#define GUESSED false
#endif
/* What a result compares. */
#ifdef RESULT_OF_ANY_ATTEMPT
#define RESULT_IS_MINE (call == STARTED)
#else
#define RESULT_IS_MINE (call == STARTED && attempt == my_attempt)
#endif
/* What "unknown" compares. */
#ifdef UNKNOWN_ALWAYS
#define STILL_RUNNING(a) true
#else
#define STILL_RUNNING(a) (call == STARTED && attempt == a)
#endif
/* What the commit compares besides the claim. */
#ifdef COMMIT_IGNORES_CANCEL
#define CANCEL_AS_SEEN true
#else
#define CANCEL_AS_SEEN (cancel_requested == saw_cancel)
#endif

#define NONE 0

mtype = { RUNNING, WAITING, SUCCEEDED, CANCELLED };
mtype = { PROPOSED, STARTED, DONE, UNKNOWN, NOT_STARTED };
mtype = { NOTHING, STEP_DONE, STEP_UNKNOWN, STEP_CANCELLED };

/* Postgres: the run row, its owner's process, the ledger row. */
mtype status = RUNNING;
bool cancel_requested;
byte claim_id, claimed_by;
bool owner_dead;
mtype call = PROPOSED;
byte attempt;

/* Only the model knows these. */
byte claims, attempts;   /* ids are random: none comes twice */
byte live;               /* the process whose claim counts */
byte authorised = 1, effects;
byte happened;           /* one bit per attempt id whose effect happened */
byte terminals;
byte started_under;      /* the claim under which the attempt began */
bool stale_intent, late_intent, wrong_result, result_undone, attempt_spoiled, cancel_overruled;
byte faults = FAULTS, again = AGAIN;

inline clear_claim() {
    claim_id = NONE; claimed_by = NONE; owner_dead = false; live = NONE; started_under = NONE
}

inline finish(how) {
    printf("the run ends: %e\n", how);
    cancel_overruled = cancel_overruled || (cancel_requested && how == SUCCEEDED);
    status = how; terminals++
}

/* Whoever takes the run back ends it when a cancel was asked. */
inline take_back() {
    clear_claim();
    if
    :: cancel_requested -> finish(CANCELLED)
    :: else
    fi
}

inline die() {
    printf("worker %d dies\n", _pid);
    faults--;
    if
    :: claimed_by == _pid -> owner_dead = true
    :: else
    fi
}

/* Close an attempt that will bring no result. */
inline give_up(which, as) {
    if
    :: STILL_RUNNING(which) ->
        printf("worker %d: attempt %d is %e\n", _pid, which, as);
        result_undone = result_undone || call == DONE;
        attempt_spoiled = attempt_spoiled || (started_under != NONE && claim_id != mine);
        call = as
    :: else
    fi
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
           take_back() }
    od
}
#endif

active [WORKERS] proctype Worker() {
    byte mine, prior, my_attempt;
    bool saw_cancel;
    mtype saw_call = PROPOSED;
    mtype outcome = NOTHING;

end_idle:
    atomic { status == RUNNING && claim_id == NONE ->
        claims++; claim_id = claims; mine = claims; claimed_by = _pid; owner_dead = false;
        live = _pid;
        saw_call = call; prior = attempt; saw_cancel = cancel_requested;
        printf("worker %d claims the run, the call is %e\n", _pid, saw_call) }

decide:
    if
    :: atomic { faults > 0 -> die(); goto again_idle }
    :: atomic { saw_cancel -> outcome = STEP_CANCELLED; goto commit }
    :: atomic { !saw_cancel && (saw_call == DONE || saw_call == NOT_STARTED) ->
           outcome = STEP_DONE; goto commit }
    :: atomic { !saw_cancel && saw_call == UNKNOWN -> outcome = STEP_UNKNOWN; goto commit }
#ifndef GUESS
    /* a dead owner's intent without a result: nobody knows */
    :: atomic { !saw_cancel && saw_call == STARTED ->
#ifndef WAIT_FOR_RESULT
           give_up(prior, UNKNOWN);
#endif
#ifndef GIVE_UP_WHATEVER_RUNS
           if
           :: call == STARTED && attempt != prior ->
               printf("worker %d: attempt %d is another owner's\n", _pid, attempt);
               goto again_idle
           :: else
           fi;
#endif
           saw_call = call; prior = attempt; goto decide }
#endif
    :: atomic { !saw_cancel && (saw_call == PROPOSED || GUESSED) ->
           /* intent */
#ifndef NO_INTENT
           if
           :: INTENT_OWNED && INTENT_ALLOWED && INTENT_AUTHORISED ->
               stale_intent = stale_intent || live != _pid;
               late_intent = late_intent || cancel_requested;
               attempts++; attempt = attempts; my_attempt = attempts;
               result_undone = result_undone || call == DONE;
               call = STARTED; started_under = claim_id;
               printf("worker %d commits the intent of attempt %d\n", _pid, my_attempt)
           :: else ->
               printf("worker %d may not start the call\n", _pid);
               outcome = STEP_CANCELLED; goto commit
           fi
#else
           attempts++; my_attempt = attempts
#endif
       }
    fi;

    /* effect */
    if
    :: atomic { faults > 0 -> die(); goto again_idle }
    :: atomic { cancel_requested -> give_up(my_attempt, NOT_STARTED);
           outcome = STEP_CANCELLED; goto commit }
    :: atomic { printf("worker %d: the effect of attempt %d happens\n", _pid, my_attempt);
           effects++; happened = happened | (1 << my_attempt) }
    fi;

    /* result, as soon as it is known */
    if
    :: atomic { faults > 0 -> die(); goto again_idle }
    :: atomic { cancel_requested -> give_up(my_attempt, UNKNOWN);
           outcome = STEP_CANCELLED; goto commit }
    :: atomic {
           if
#ifndef NO_INTENT
           :: RESULT_IS_MINE ->
#else
           :: call == PROPOSED -> attempt = my_attempt;
#endif
               printf("worker %d records its result, for attempt %d\n", _pid, attempt);
               wrong_result = wrong_result || !(happened & (1 << attempt));
               call = DONE; outcome = STEP_DONE
           :: else ->
               printf("worker %d: its result comes too late, it is evidence\n", _pid);
               goto again_idle
           fi }
    fi;

commit:
    if
    :: atomic { faults > 0 -> die(); goto again_idle }
    :: atomic {
           if
           :: claim_id == mine && CANCEL_AS_SEEN ->
               clear_claim();
               if
               :: saw_cancel -> finish(CANCELLED)
               :: !saw_cancel && outcome == STEP_DONE -> finish(SUCCEEDED)
               :: !saw_cancel && outcome == STEP_UNKNOWN ->
                   printf("the run waits for a person\n"); status = WAITING
               :: !saw_cancel && outcome == STEP_CANCELLED   /* given back */
               fi;
               goto again_idle
           :: claim_id == mine && !CANCEL_AS_SEEN -> saw_cancel = cancel_requested; goto commit
           :: claim_id != mine -> printf("worker %d: lost ownership\n", _pid); goto again_idle
           fi }
    fi;

again_idle:
    atomic { mine = NONE; prior = NONE; my_attempt = NONE; saw_cancel = false;
        saw_call = PROPOSED; outcome = NOTHING; goto end_idle }
}

/* The cancel of a user: under the row lock, once, or never. */
active proctype Canceller() {
    bool unowned;
#ifdef CANCEL_WITHOUT_LOCK
    atomic { (status == RUNNING || status == WAITING) -> unowned = (claim_id == NONE) }
    atomic { cancel_requested = true; printf("cancel asked\n");
        if
        :: unowned -> clear_claim(); finish(CANCELLED)
        :: else
        fi }
#else
end:
    atomic { (status == RUNNING || status == WAITING) ->
        if
        :: printf("cancel asked\n");
            cancel_requested = true; unowned = (claim_id == NONE);
            if
            :: unowned -> unowned = false; finish(CANCELLED)
            :: else
            fi
        :: true
        fi }
#endif
}

/* A person decides what became of an unknown effect; or never does. */
active proctype Person() {
end:
    do
    :: atomic { status == WAITING && call == UNKNOWN ->
           printf("a person says: it happened\n"); call = DONE; status = RUNNING;
           break }
    :: atomic { status == WAITING && call == UNKNOWN && again > 0 ->
           printf("a person says: run it again\n");
           again--; authorised++; call = PROPOSED; status = RUNNING }
    :: atomic { status == WAITING -> break }
    od
}

/* An effect happens at most once per attempt that the plan or a person authorised. */
ltl inv3 { [] (effects <= authorised) }
/* One terminal state. */
ltl inv4 { [] (terminals <= 1) }
/* A stale owner never starts an effect. */
ltl inv6 { [] !stale_intent }
/* No new intent after a cancel was recorded. */
ltl inv9 { [] !late_intent }
/* A cancel recorded before the end is the end. */
ltl cancel_wins { [] !cancel_overruled }
/* A recorded success is that of the attempt it stands beside. */
ltl own_result { [] !wrong_result }
/* A recorded result stays. */
ltl result_stays { [] !result_undone }
/* An attempt is given up by its own owner, or when its owner has lost the run. */
ltl attempt_kept { [] !attempt_spoiled }
/* The run ends or waits for a person. */
ltl inv8 { <> [] (status != RUNNING) }
/* Not a property: shows that an effect can be run again, after every fault, and end well. */
ltl reached { [] !(status == SUCCEEDED && faults == 0 && effects == 1 + AGAIN) }
