-- Hold a key's row, with what decides whether it may be rotated.
SELECT k.*, clock_timestamp() AS now,
       EXISTS (SELECT 1 FROM api_keys n WHERE n.tenant_id = k.tenant_id AND n.rotated_from = k.id AND n.revoked_at IS NULL
               AND (n.expires_at IS NULL OR n.expires_at > clock_timestamp())) AS has_successor
FROM api_keys k WHERE k.tenant_id = %(tenant_id)s AND k.id = %(id)s FOR UPDATE OF k
