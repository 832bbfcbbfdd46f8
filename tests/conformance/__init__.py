"""One suite that holds every client to the same behaviour; see README.md here."""
