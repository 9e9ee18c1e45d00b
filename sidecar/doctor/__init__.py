"""Doctor: what ``kafka-sidecar doctor`` looks at, step by step, with the daemon's own parts.

It changes nothing, and the daemon must not use it."""
