"""Measuring how far an explanation can be trusted: metrics, rationales, evaluation, arbitration."""
