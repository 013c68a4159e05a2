-- Find an API key by its public part: the only read that comes before the tenant is known, so a function does it that sees all keys
-- and gives back one. Expiry is judged by Postgres time.
SELECT * FROM find_api_key(%(public_id)s)
