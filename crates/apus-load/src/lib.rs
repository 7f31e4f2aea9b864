//! Workloads, arrivals, latency recording, result files, reports and plots.
