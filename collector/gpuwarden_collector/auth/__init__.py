"""Authenticates requests and authorizes them: tokens, scopes, TLS, enrolment (`docs/security.md`)."""
