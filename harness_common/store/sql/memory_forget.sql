-- Delete one fact of a user for good; what all share is not a user's to delete.
DELETE FROM memories WHERE tenant_id = %(tenant_id)s AND scope = %(scope)s AND user_id = %(user_id)s AND id = %(id)s RETURNING id
