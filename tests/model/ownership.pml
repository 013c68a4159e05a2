/* Who may work on a run: doorbells, the lease in Redis, the claim in Postgres, the reaper.
 *
 * One run of STEPS steps, WORKERS worker processes, one scheduler. Each atomic block is one statement
 * in Postgres or one command in Redis; a worker may die before each of them. The mechanisms stand in
 * macros, and each can be taken out with -D (see README.md for what then goes wrong).
 */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef STEPS
#define STEPS 2
#endif

/* How many faults may happen in all, of any kinds, at any time: a worker process dies; a slow one is
 * taken for dead and goes on later; FLUSHALL; a live owner's lease runs out; Postgres forgets a claim
 * that was not flushed; a claim whose reply is lost; a doorbell lost or delivered twice.
 */
#ifndef FAULTS
#define FAULTS 3
#endif

/* What intent, commit and read-back compare. */
#ifdef NO_VERSION
#define SAME_VERSION true
#else
#define SAME_VERSION (version == seen)
#endif
#ifdef NO_FENCE
#define SAME_FENCE true
#else
#define SAME_FENCE (fence == my_fence)
#endif
#if defined(NO_CLAIM_ID) || defined(FENCE_ONLY) || defined(REDIS_TOKEN)
#define SAME_CLAIM_ID true
#else
#define SAME_CLAIM_ID (claim_id == my_claim_id)
#endif
#define OWNED (SAME_VERSION && SAME_FENCE && SAME_CLAIM_ID)

/* What a claim asks for. */
#ifdef CLAIM_TAKES_OVER
#define UNCLAIMED true   /* whoever holds the lease may replace a claim */
#else
#define UNCLAIMED (claim_id == NONE)
#endif
#ifdef REDIS_TOKEN
#define TOKEN_HOLDS (my_fence >= fence)
#else
#define TOKEN_HOLDS true
#endif

#ifdef NO_PG_CRASH
#define PG_MAY_CRASH false
#else
#define PG_MAY_CRASH true
#endif

#define NONE 0

/* Postgres: the run row. */
bool ended;
byte version, fence, claim_id, claimed_by;
bool claim_unflushed;    /* the claim's commit was asynchronous and nothing was flushed since */
/* The workers table, for the process that claimed_by names. */
bool owner_dead;
/* Redis. */
byte lease;              /* the process that holds it */
bool lease_of_dead;
byte token;              /* only with REDIS_TOKEN */
/* The broker: doorbells under way, by the version that they carry; any may arrive next. */
byte bells[STEPS];
/* What each process believes to hold: its heartbeat compares it with the row. */
byte held[WORKERS + 1];

/* Only the model knows these. */
byte minted;             /* claim ids are random: none comes twice */
byte live;               /* the process whose claim counts: granted, not taken back since */
byte commits[STEPS];
bool stale_commit, live_claim_taken;
byte faults = FAULTS;

/* More than two equal doorbells show nothing new. */
inline ring(v) {
    if
    :: v < STEPS && bells[v] < 2 -> bells[v]++
    :: else
    fi
}

/* Back to "unclaimed". */
inline forget_claim() {
    claim_id = NONE; claimed_by = NONE; owner_dead = false; claim_unflushed = false; live = NONE
}

/* The same as a flushed write: by a commit, the reaper, the heartbeat. */
inline clear_claim() {
#ifdef FENCE_ONLY
    fence++;             /* without a claim id, only this shuts the old owner out */
#endif
    forget_claim()
}

/* The process is gone; another starts in its place and knows nothing. */
inline die() {
    printf("worker %d dies\n", _pid);
    faults--;
    if
    :: claimed_by == _pid -> owner_dead = true
    :: else
    fi;
    if
    :: lease == _pid -> lease_of_dead = true
    :: else
    fi;
    held[_pid] = NONE
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
    byte seen, my_fence, my_claim_id;
    bool must_ring;

end_idle:
    atomic { seen = 0; my_fence = 0; my_claim_id = NONE; must_ring = false; held[_pid] = NONE }
    if
    :: atomic { !ended && bells[0] > 0 -> bells[0]--; seen = 0 }
#if STEPS > 1
    :: atomic { !ended && bells[1] > 0 -> bells[1]--; seen = 1 }
#endif
#if STEPS > 2
    :: atomic { !ended && bells[2] > 0 -> bells[2]--; seen = 2 }
#endif
    fi;

    /* lease: the loser leaves, its doorbell is spent */
    if
    :: atomic { lease == NONE ->
           lease = _pid;
#ifdef REDIS_TOKEN
           token++; my_fence = token;
#endif
           printf("worker %d answers doorbell %d and has the lease\n", _pid, seen) }
    :: atomic { lease != NONE -> printf("worker %d: lease held\n", _pid); goto end_idle }
    fi;

    /* claim (asynchronous commit) */
    if
    :: atomic { faults > 0 -> die(); goto end_idle }
    :: atomic {
           if
           :: version == seen && !ended && UNCLAIMED && TOKEN_HOLDS ->
#ifdef REDIS_TOKEN
               fence = my_fence;
#else
               fence++; my_fence = fence;
#endif
               minted++; claim_id = minted; my_claim_id = minted; held[_pid] = minted;
               claimed_by = _pid; owner_dead = false; claim_unflushed = true;
               live_claim_taken = live_claim_taken || live != NONE;
               live = _pid;
               printf("worker %d claims version %d: fence %d, claim %d\n", _pid, seen, fence, claim_id);
               if
               :: faults > 0 ->
                   printf("worker %d never hears that it owns the run\n", _pid);
                   faults--; held[_pid] = NONE; goto let_go
               :: true
               fi
           :: else -> goto let_go
           fi }
    fi;

    /* the step runs: nothing is open, anything may happen meanwhile */

    /* commit (flushed) */
    if
    :: atomic { faults > 0 -> die(); goto end_idle }
    :: atomic {
           if
           :: OWNED ->
               printf("worker %d commits step %d\n", _pid, seen);
               stale_commit = stale_commit || (live != _pid);
               commits[seen]++;
               version = seen + 1;
               clear_claim();
               ended = (version == STEPS);
               must_ring = !ended
           :: else -> printf("worker %d: lost ownership\n", _pid)
           fi;
           held[_pid] = NONE }
    fi;

#ifdef RING_FIRST
    if
    :: atomic { faults > 0 -> die(); goto end_idle }
    :: atomic { must_ring -> ring(seen + 1); printf("worker %d rings\n", _pid); must_ring = false }
    :: !must_ring
    fi;
#endif

let_go:
    /* compare and delete the lease */
    if
    :: atomic { faults > 0 -> die(); goto end_idle }
    :: atomic {
           if
           :: lease == _pid -> lease = NONE
           :: else
           fi;
           printf("worker %d lets go\n", _pid) }
    fi;

    /* then ring */
    if
    :: atomic { must_ring && faults > 0 -> die(); goto end_idle }
    :: atomic { must_ring -> ring(seen + 1); printf("worker %d rings\n", _pid); goto end_idle }
    :: atomic { !must_ring -> goto end_idle }
    fi;
}

/* wake_at: a run that is ready and whose doorbell nobody answered is rung again. */
active proctype RingAgain() {
    atomic { ring(0) }   /* admission rings first */
#ifndef NO_WAKE
end:
    do
    :: atomic { !ended && claim_id == NONE && bells[version] == 0 ->
           printf("scheduler rings again for version %d\n", version); ring(version) }
    od
#endif
}

/* Clears the claims of the dead, breaks their lease, rings. */
#ifndef NO_REAPER
active proctype Reaper() {
    byte who;
end:
    do
    :: atomic { !ended && claim_id != NONE && (owner_dead || faults > 0) ->
           who = claimed_by;
           if
           :: owner_dead
           :: else -> faults--
           fi;
           printf("reaper takes the run back from worker %d\n", who);
           clear_claim() }
       atomic {
           if
           :: lease == who -> lease = NONE; lease_of_dead = false
           :: else
           fi;
           who = NONE }
       atomic { ring(version) }
    od
}
#endif

/* A live process gives back a claim that it does not know of. */
#ifndef NO_GIVE_BACK
active proctype Heartbeat() {
end:
    do
    :: atomic { !ended && claim_id != NONE && !owner_dead && held[claimed_by] != claim_id ->
           printf("worker %d gives back a claim it did not know of\n", claimed_by);
           clear_claim(); ring(version) }
    od
}
#endif

/* The lease of a process that no longer renews it runs out. */
#ifndef LEASE_FOR_EVER
active proctype Expiry() {
end:
    do
    :: atomic { !ended && lease_of_dead -> lease = NONE; lease_of_dead = false }
    od
}
#endif

active proctype Faults() {
end:
    do
    :: atomic { !ended && faults > 0 ->
           printf("FLUSHALL\n");
           faults--; lease = NONE; lease_of_dead = false; token = 0;
           bells[0] = 0;
#if STEPS > 1
           bells[1] = 0;
#endif
#if STEPS > 2
           bells[2] = 0;
#endif
       }
    :: atomic { !ended && faults > 0 && lease != NONE && !lease_of_dead ->
           printf("the lease of worker %d expires\n", lease); faults--; lease = NONE }
    :: atomic { PG_MAY_CRASH && !ended && faults > 0 && claim_unflushed ->
           printf("Postgres crashes and forgets claim %d\n", claim_id);
           faults--;
#ifndef REDIS_TOKEN
           fence--;
#endif
           forget_claim()
       }
    :: atomic { !ended && faults > 0 && version < STEPS && bells[version] > 0 ->
           printf("doorbell %d is lost\n", version); faults--; bells[version]-- }
    :: atomic { !ended && faults > 0 && bells[0] > 0 -> faults--; ring(0) }
#if STEPS > 1
    :: atomic { !ended && faults > 0 && bells[1] > 0 -> faults--; ring(1) }
#endif
    :: atomic { !ended && faults > 0 -> faults = 0 }   /* or no fault comes any more */
    od
}

/* A step is committed once. */
ltl inv2 { [] (commits[0] <= 1 && commits[STEPS - 1] <= 1) }
/* A stale owner never commits a step. */
ltl inv6 { [] !stale_commit }
/* Losing leases (FLUSHALL, expiry) costs no live owner its claim. */
ltl inv7 { [] !live_claim_taken }
/* The run ends, whatever these faults do. */
ltl inv8 { <> ended }
/* Not a property: shows that the model gets to its end with every fault behind it. */
ltl reached { [] !(ended && faults == 0) }
