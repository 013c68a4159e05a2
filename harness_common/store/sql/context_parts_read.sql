-- Parts of prompts by their digests.
SELECT tenant_id, digest, body FROM context_parts WHERE tenant_id = %(tenant_id)s AND digest = ANY(%(digests)s)
