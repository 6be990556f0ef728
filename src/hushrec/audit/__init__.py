"""Privacy audits: attacks on the protocols, and a score for each attack.

An attack sees an `Observation`: the messages of a training run, and public knowledge. It tries to recover a `Truth`:
the people's private data. `observed_run.record` makes both from a training run. `attacks/` holds the attacks of an
honest-but-curious server, which only reads the messages. The attacks in `malicious`, `difference` and `poisoning` run
simulated devices again. `judge` scores the guesses of the attacks, and `run.audit` runs all attacks. A new attack is
one small class in one of the lists of `attacks/`. `masked/` holds the audit of protocol `masked`.

In this package a *victim* is a person under attack, and *existence* means which items a person has rated.
"""
