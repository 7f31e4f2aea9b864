//! The tests of the core, as one program.

mod pair;

mod at_most_once;
mod black_hole;
mod budgets;
mod compact;
mod contact;
mod counters;
mod crowded_host;
mod flight;
mod grants;
mod held;
mod hostile;
mod incast;
mod introduction;
mod life_cycle;
mod linux_peers;
mod local;
mod loss;
mod path_ends;
mod peer_failure;
mod priorities;
mod property;
mod refusals;
mod retransmission;
mod rights;
mod rules;
mod sealed_ends;
mod sending_order;
mod server_state;
mod shards;
mod slow_link;
mod slow_requests;
mod trace;
mod trace_context;
mod within_host;
