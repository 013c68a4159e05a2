-- A worker process left in an orderly way; it holds nothing any more.
DELETE FROM workers WHERE incarnation = %(worker)s
AND NOT EXISTS (SELECT 1 FROM runs WHERE claimed_by = %(worker)s AND claim_id IS NOT NULL)
