-- Keep a part of prompts (a system text, tool definitions) under its digest.
INSERT INTO context_parts (tenant_id, digest, body) VALUES (%(tenant_id)s, %(digest)s, %(body)s::jsonb)
ON CONFLICT (tenant_id, digest) DO NOTHING
