//! A strict fake of the ublk driver.
