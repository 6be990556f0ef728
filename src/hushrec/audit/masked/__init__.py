"""The audit of protocol `masked`: attacks on the sums, and on all other messages that a server sees.

The attacker is the one that differential privacy assumes: it knows everybody else's ratings, every public table and the
distribution of the noise. For this attacker, a sum minus everybody else's tables is one person's table plus noise.

`sums` runs the protocol and records what the server sees. `trials` and `pairs` measure ε. `readings` and `people`
recover items, ratings, taste and the number of ratings from the sums. `crafted` holds public tables of a malicious
server. `cohorts` and `collusion` run single rounds of secure aggregation. `bench` runs all attacks.
"""
