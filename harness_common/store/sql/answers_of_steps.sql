-- What the model answered, or a compaction did, in a range of a run's steps, without the answers themselves.
SELECT step, payload FROM events
WHERE tenant_id = %(tenant_id)s AND run_id = %(run_id)s AND type IN ('model.answered', 'context.compacted') AND step BETWEEN %(first)s AND %(last)s
