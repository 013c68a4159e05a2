-- Give way to whoever works: wait for nothing, and let a commit be flushed with the next ones unless it has to last.
SELECT set_config('lock_timeout', '200ms', true), set_config('statement_timeout', '5s', true), set_config('synchronous_commit', %(sync)s::text, true)
