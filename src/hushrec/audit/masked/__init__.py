"""The audit of protocol `masked`: attacks on the sums, and on all other messages that a server sees.

The attacker is the one that differential privacy bounds: it knows everybody else's ratings, every public table and the
distribution of the noise. A sum minus everybody else's tables is one person's table plus noise. `sums` runs the
protocol and keeps what the server saw; `trials` and `pairs` measure ε; `readings` and `people` recover items, ratings,
taste and counts from the sums; `crafted` holds tables of a malicious server; `cohorts` and `collusion` run single
rounds of secure aggregation; `bench` runs all attacks.
"""
