"""The person's device: its local store and privacy ledger, its session with a server, and the person's page."""
