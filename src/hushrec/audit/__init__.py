"""The adversary's seat: attacks on messages and public state, scored beside the claims they test.

`observation` holds all that an attack may see; `attacks/` are those of a curious server, `malicious`, `difference`
and `poisoning` those that need devices to answer; `record` runs a protocol and keeps the truth apart; `judge` scores;
`run.audit` does it all. A new attack is one small class in one of the lists; a new protocol needs nothing but its
messages.
"""
