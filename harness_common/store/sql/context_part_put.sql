-- Keep a part of prompts (a system text, tool definitions) under its digest; with a run when it is that run's own.
INSERT INTO context_parts (tenant_id, digest, body, run_id) VALUES (%(tenant_id)s, %(digest)s, %(body)s::jsonb, %(run_id)s::uuid)
ON CONFLICT (tenant_id, digest) DO NOTHING
