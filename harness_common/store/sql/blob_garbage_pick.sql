-- Blobs that nobody may name any more, the longest first, and whether an artifact of any tenant does.
SELECT g.tenant_id, g.sha256, EXISTS (SELECT 1 FROM artifacts a WHERE a.sha256 = g.sha256) AS named
FROM blob_garbage g WHERE g.look_at <= clock_timestamp() - make_interval(secs => %(grace_s)s) ORDER BY g.look_at LIMIT %(limit)s
