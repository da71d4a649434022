"""Principals, credentials and access rules; pure.

`principals` names who acts. `scram` and `users` hold credentials, `api_keys` those of HTTP clients,
`delegation_tokens` those of processes that act for a user; `oauth` verifies tokens of others. `acls` decides
what a principal may do.
"""
