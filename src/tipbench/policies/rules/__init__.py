"""One file per family of policies; each names what it offers as `POLICIES`. Nothing else has to be told."""
