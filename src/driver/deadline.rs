//! Bounds every control command in time.
