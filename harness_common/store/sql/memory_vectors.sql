-- Tell whether this server has the extension that compares vectors.
SELECT to_regtype('vector') IS NOT NULL AS vectors
