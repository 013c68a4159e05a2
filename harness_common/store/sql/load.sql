-- Read what the next step needs beyond the run row: messages after those already known, and the ledger of this step.
SELECT
    (SELECT array_agg(m.body::text ORDER BY m.n) FROM messages m
     WHERE m.tenant_id = %(tenant_id)s AND m.run_id = %(run_id)s AND m.n > %(have)s AND m.n <= %(messages)s) AS messages,
    (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.idx) FROM tool_calls c
     WHERE %(ledger)s AND c.tenant_id = %(tenant_id)s AND c.run_id = %(run_id)s AND c.step = %(step)s) AS calls
