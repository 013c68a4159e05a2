-- Hold a run that another is made from, so that nothing of it is deleted meanwhile; what it has lost already, and how it began.
SELECT pruned, forked_step, created_at FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s FOR SHARE
