-- Write a person's decision: compare-and-set on what the person was shown and on Postgres time. The run's row is locked already.
UPDATE approvals SET status = %(status)s, decided_at = clock_timestamp(), decided_by = %(by)s, decided_role = %(role)s, reason = %(reason)s,
    original_digest = CASE WHEN %(arguments)s::json IS NULL THEN original_digest ELSE coalesce(original_digest, digest) END,
    original_arguments = CASE WHEN %(arguments)s::json IS NULL THEN original_arguments ELSE coalesce(original_arguments, arguments) END,
    edited_by = CASE WHEN %(arguments)s::json IS NULL THEN edited_by ELSE %(by)s END,
    arguments = coalesce(%(arguments)s::json, arguments),
    digest = %(digest)s
WHERE tenant_id = %(tenant_id)s AND id = %(id)s AND status = 'pending' AND digest = %(shown_digest)s AND expires_at > clock_timestamp()
RETURNING id, set_config('synchronous_commit', 'on', true)
