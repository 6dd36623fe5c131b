//! The real driver, over libublk's ABI and io_uring.
