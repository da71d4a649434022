"""Transactions: transactional ids, fencing, and the two-phase end."""
