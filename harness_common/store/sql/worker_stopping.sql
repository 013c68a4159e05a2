-- A worker process was told to stop: if it is killed before it has left, that is not its run's doing.
UPDATE workers SET stopping_at = clock_timestamp() WHERE incarnation = %(worker)s AND stopping_at IS NULL
