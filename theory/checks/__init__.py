"""One function per claim: random instances, the worst of them as Evidence. claims.py is the table of them."""
