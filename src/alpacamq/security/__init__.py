"""Principals, credentials and access rules; pure.

`principals` names who acts. `scram` and `users` hold credentials, `api_keys` those of HTTP clients, and
`acls` decides what a principal may do.
"""
