//! The Homa protocol as pure state: no clock, thread, socket or unsafe.
