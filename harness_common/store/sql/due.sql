-- Tenants that have delayed runs whose time has come.
SELECT DISTINCT tenant_id FROM (
    SELECT tenant_id FROM runs WHERE wake_at <= clock_timestamp() AND status = 'delayed' ORDER BY wake_at LIMIT %(batch)s) AS due
