"""JSON Schema: Draft 4, 6, 7, 2019-09 and 2020-12.

`schema` parses. `text` reads and writes JSON exactly, `documents` resolves references between schemas,
`model` translates a schema into typed nodes, `compatibility` compares the nodes of two schemas by Confluent's
rules, and `validation` checks data.

Nothing is read from the network or from files: a reference leads to the schema itself, to one of its
dependencies or to a meta-schema.
"""
