-- Whether row-level security binds this login: it may not see every tenant, neither by itself nor by a role that it has.
SELECT current_user::text AS role,
       coalesce(row_security_active(to_regclass('runs')), false)
       AND NOT coalesce(pg_has_role(current_user::name, to_regrole('harness_system')::oid, 'MEMBER'), true) AS bound
