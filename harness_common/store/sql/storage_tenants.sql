-- What each tenant has, reckoned from a part of the runs, and what of it is past its age. Nothing for whoever does not run the platform.
SELECT * FROM storage_of_tenants(%(percent)s::real, %(events_days)s::int, %(checkpoints_days)s::int, %(artifacts_days)s::int, %(runs_days)s::int)
