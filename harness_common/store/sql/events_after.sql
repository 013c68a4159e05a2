-- A run's events after a cursor, with whether more can come: one row without an event when there are none. No row: no such run.
SELECT r.status, r.next_seq, e.seq, e.type, e.step, e.payload, e.at
FROM runs r
LEFT JOIN LATERAL (
    SELECT seq, type, step, payload, at FROM events
    WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND seq > %(after)s
    ORDER BY seq LIMIT %(limit)s) AS e ON true
WHERE r.tenant_id = %(tenant_id)s AND r.id = %(run_id)s
ORDER BY e.seq
