-- Say of runs what they have lost.
UPDATE runs SET pruned = pruned | %(bits)s::smallint WHERE tenant_id = %(tenant_id)s AND id = ANY(%(ids)s::uuid[])
