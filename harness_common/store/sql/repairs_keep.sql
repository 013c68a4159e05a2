-- Count the repairs that the answer of a step took; another attempt at the step takes the place of the one before.
INSERT INTO repairs (tenant_id, run_id, step, agent, model, kinds)
VALUES (%(tenant_id)s, %(run_id)s, %(step)s, %(agent)s, %(model)s, %(kinds)s)
ON CONFLICT (tenant_id, run_id, step) DO UPDATE SET kinds = excluded.kinds, model = excluded.model, at = clock_timestamp()
RETURNING step, set_config('synchronous_commit', 'off', true)
