"""Attacks on `masked`: what a server can make of the sums, and of everything else that it sees of a cohort.

The attacker is the one that differential privacy promises to bound: it knows everybody else's ratings, every public
table and the law of the noise. What is left of a sum, once everybody else is subtracted, is one person's table and the
noise. `sums` runs the protocol and keeps what the server saw; `trials` measures ε by coins; `readings` reads items,
ratings, taste and counts off the sums; `crafted` has tables of a server that cheats; `cohorts` has collusion,
differences and masked tables; `bench` runs them all.
"""
