-- Delete what is left of runs: what was said, called, asked, approved, told and counted, and the runs themselves; facts forget where they are from.
WITH message AS (DELETE FROM messages WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[]) RETURNING 1),
     call AS (DELETE FROM tool_calls WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[]) RETURNING 1),
     input AS (DELETE FROM inputs WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     approval AS (DELETE FROM approvals WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     repair AS (DELETE FROM repairs WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     part AS (DELETE FROM context_parts WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     told AS (DELETE FROM webhook_deliveries WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     key AS (DELETE FROM idempotency_keys WHERE tenant_id = %(tenant_id)s AND run_id = ANY(%(ids)s::uuid[])),
     fact AS (UPDATE memories SET provenance = provenance - '{run,call,approval}'::text[] || '{"run_pruned": true}'
              WHERE tenant_id = %(tenant_id)s AND provenance->>'run' = ANY(%(external)s)),
     run AS (DELETE FROM runs WHERE tenant_id = %(tenant_id)s AND id = ANY(%(ids)s::uuid[]) RETURNING 1)
SELECT (SELECT count(*) FROM run)::int AS runs, (SELECT count(*) FROM message)::int AS messages, (SELECT count(*) FROM call)::int AS calls
