"""Who may do what: tokens, scopes, TLS, enrolment. `docs/security.md` is the full text."""
