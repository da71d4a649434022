"""Transactions: transactional ids, fencing, and two-phase completion."""
