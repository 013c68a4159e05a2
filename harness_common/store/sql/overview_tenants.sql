-- What every tenant has going, for the operator's alone: a function that sees all tenants and asks who asks.
SELECT * FROM platform_tenants()
