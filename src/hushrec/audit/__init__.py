"""Privacy audits: attacks on the protocols, which use messages and public tables only, and a score for each attack.

An `Observation` holds all that an attack may see, and a `Truth` what it tries to recover; `observed_run.record` makes
both from a training run. `attacks/` holds the attacks of an honest-but-curious server; `malicious`, `difference` and
`poisoning` those that need devices to report again. `judge` scores the guesses, and `run.audit` runs everything. A new
attack is one small class in one of the lists of `attacks/`. `masked/` holds the audit of protocol `masked`.
"""
