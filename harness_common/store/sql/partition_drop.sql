-- Drop a week of events or checkpoints, by the schema's owner, who looks again.
SELECT drop_partition(%(parent)s, %(starts)s::timestamptz) AS dropped
