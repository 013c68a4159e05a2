-- Hold a run that another is made from, so that nothing of it is deleted meanwhile; what it has lost already.
SELECT pruned FROM runs WHERE tenant_id = %(tenant_id)s AND id = %(run_id)s FOR SHARE
