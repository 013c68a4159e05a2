-- Tell whether this server has the extension that compares vectors.
SELECT EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'vector') AS vectors
