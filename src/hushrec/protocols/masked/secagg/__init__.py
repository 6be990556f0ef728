"""Secure aggregation: the server learns the sum of the tables but no single table [Bonawitz2017] [Bell2020].

The functions of this package are the steps of one attempt of a round in one cohort, without I/O. The letter a is the
hash of the signed announcement, ‖ means concatenation, and PRG(k) is a table of random-looking integers that everybody
who knows the key k can compute::

    device  draw_secrets, make_keys       KEYS       public halves of two fresh X25519 key pairs, for masks (s, S) and
                                                     for encryption (c, C), and the hash of a fresh random seed b
    server  make_roster                   ROSTER     the KEYS of all devices that replied; R = SHA-256(a ‖ all KEYS)
    device  accept_roster,                           each device draws k neighbours itself
            draw_neighbours, seal_shares  SHARES     Shamir shares of s and b, encrypted to these k neighbours only
    server                                PARTNERS   the list P of devices that sent shares; the shares for each device
    device  accept_partners, open_shares,            every mask depends on Q = SHA-256(R ‖ P)
            mask_table, sign_masks        TABLE      table + PRG(b) ± PRG(s_i S_j) for each neighbour j, modulo 2³²,
                                                     and a signature of Q
    server                                SURVIVORS  the list of devices whose tables arrived, and signatures of Q
    device  sign_survivors                CONSENT    a signature of that list
    server                                QUORUM     the signatures of all devices that consented
    device  reveal_shares                 UNMASK     a share of b for a survivor, of s for any other device; never both
    server  recover_sum                              removes the masks and gets the sum

X25519 lets device i with its private key s_i, and device j with s_j, compute the same secret s_i S_j = s_j S_i from the
other's public key. A Shamir share is one of k pieces of a secret, of which t together determine the secret, and fewer
reveal nothing. If a server shows different announcements, rosters or partners to different devices, their masks do not
cancel. Secrets are bytes in objects without a repr; the caller stores them for one attempt and then deletes them.
"""
