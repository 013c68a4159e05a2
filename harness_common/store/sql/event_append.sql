-- Add one event from the owner of a running step (progress). Not a state change; lost with its claim, not with its run.
WITH run AS (
    UPDATE runs SET next_seq = next_seq + 1
    WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s AND fence = %(fence)s AND claim_id = %(claim_id)s
    RETURNING tenant_id, id, next_seq - 1 AS seq
)
INSERT INTO events (tenant_id, run_id, seq, type, step, payload)
SELECT tenant_id, id, seq, %(type)s, %(step)s, %(payload)s::jsonb FROM run
RETURNING seq
