-- Say whose a session is: '' for nobody's.
SELECT coalesce(user_id, '') AS user_id FROM sessions WHERE tenant_id = %(tenant_id)s AND id = %(session_id)s
