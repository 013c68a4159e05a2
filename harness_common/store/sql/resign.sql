-- Stop leading at once, so that a standby need not wait.
UPDATE leader SET until = clock_timestamp() WHERE name = %(name)s AND holder = %(holder)s AND term = %(term)s
