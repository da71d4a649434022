"""Classic groups: members, joining, rebalances."""
