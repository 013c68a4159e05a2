-- Hold the leader's row against a new term until this transaction ends. No row back: the term is over.
SELECT term FROM leader WHERE name = 'scheduler' AND term = %(term)s FOR SHARE
