"""The domain's front door: what the edge calls. One method a use case, domain values in and out."""
