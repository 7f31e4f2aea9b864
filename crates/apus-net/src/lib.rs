//! Links that carry Homa packets: UDP with offloads, fault injection, capture.
