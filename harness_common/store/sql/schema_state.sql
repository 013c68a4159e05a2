-- The revision of the schema, and what it says of itself (see revisions.py).
SELECT (SELECT version_num FROM alembic_version) AS revision, obj_description('alembic_version'::regclass, 'pg_class') AS comment
