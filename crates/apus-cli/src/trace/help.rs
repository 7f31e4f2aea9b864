//! Examples and explanations that `--help` of analyses ends with.

pub(super) const COPY: &str = "Example:
  apus trace copy client.4711.trace

To the kernel: from the first packet of a burst that the core has made until the link has flushed it, including the system calls. \
Out of the link: from the first packet that the core parses to the end of the batch, without the system call. Only bursts of at \
least 10,000 bytes count, if nearly all of their packets are recorded, as with APUS_TRACE_CALLS=all.";

pub(super) const DELAY: &str = "Examples:
  apus trace delay client.4711.trace server.4712.trace
  apus trace delay --json - *.trace

The stages of a packet: xmit, when the core passes it to the link; flush, when the system call that sends it has ended; receipt, \
when the core of its receiver parses it; batch end, when all packets of its batch are handled. Retransmitted packets are excluded.";

pub(super) const P99SHORT: &str = "Example:
  apus trace p99short client.4711.trace server.4712.trace

The slow stage of a call is the stage whose time exceeds its median most. The stages are those of `apus trace timeline`, and the \
cause lies before the named stage. Give the traces of both ends, recorded with APUS_TRACE_CALLS=all if there are few calls.";

pub(super) const LOST: &str = "Example:
  apus trace lost client.4711.trace server.4712.trace

A packet is lost if its receiver's trace continues for longer than any packet took and does not have it. Otherwise, and without a \
trace of the receiver, its fate is not known.";

pub(super) const GRANTS: &str = "Example:
  apus trace grants --interval 100 client.4711.trace server.4712.trace

Unreceived: bytes that the receiver of a message has granted but not received. Unsent: bytes that its sender may send but has not \
sent. Only messages longer than the unscheduled limit have grants.";

pub(super) const LOCKS: &str = "Example:
  apus trace locks client.4711.trace

A wait is recorded when a thread does not get the lock at once. The probable holder of the lock is the other thread of the process \
with the last record before the end of the wait.";

pub(super) const PASS: &str = "Example:
  apus trace pass --length 1000 sim.trace

The command counts pairs of packets on their way to the same node, one of a short and one of a longer message. If priorities work, \
packets of short messages overtake the others.";

pub(super) const HANDOFFS: &str = "Example:
  apus trace handoffs client.4711.trace server.4712.trace

Same thread: the thread that takes the message also parsed its last packet. Woken thread: the thread slept when the message was \
complete.";

pub(super) const OOO: &str = "Example:
  apus trace ooo client.4711.trace server.4712.trace

The lateness of a packet is the time since later bytes of its message arrived. Retransmitted packets are counted separately.";

pub(super) const SOCKQS: &str = "Example:
  apus trace sockqs client.4711.trace server.4712.trace

The port of a call is known only from the trace of its client.";

pub(super) const INCOMING: &str = "Example:
  apus trace incoming --interval 100 server.4712.trace

All datagrams of the link count, including those of calls that are not recorded. In a trace of a simulation, DATA packets count \
instead.";

pub(super) const NET: &str = "Example:
  apus trace net --interval 100 client.4711.trace server.4712.trace

Bytes of DATA are on their way from the moment at which the core passes them to the link until the receiver parses them. Bytes \
that do not arrive are excluded.";

pub(super) const ACTIVITY: &str = "Example:
  apus trace activity --interval 100 client.4711.trace server.4712.trace

Only recorded calls and their bytes count: one call in 64, unless APUS_TRACE_CALLS is set.";

pub(super) const LONGTERM: &str = "Example:
  apus trace longterm --interval 100000 client.4711.trace

Calls count in the interval in which they began. The oldest call is the earliest one that ends after the interval.";

pub(super) const TPUT: &str = "Example:
  apus trace tput --length 1000000 client.4711.trace server.4712.trace

The time of a message is from its first transmission until it is complete.";

pub(super) const SUM: &str = "Example:
  apus trace sum client.4711.trace

The time of an event is the time since the previous record of the same thread.";

pub(super) const RTT: &str = "Example:
  apus trace rtt --length 500 client.4711.trace

A call is short if its request and its response are short.";

pub(super) const MINLATENCY: &str = "Example:
  apus trace minlatency client.4711.trace server.4712.trace

The clocks of two hosts are aligned so that the least time is the same in both directions; only the sum is measured.";

pub(super) const PAIRS: &str = "Example:
  apus trace pairs client.4711.trace server.4712.trace

The time beyond the least is spent in queues: of the sender's link, the network, the kernel and the receiver's engine.";

pub(super) const SNAPSHOT: &str = "Example:
  apus trace snapshot --at 1500 client.4711.trace server.4712.trace

Outgoing: messages that were not completely sent. Incoming: messages that had partly arrived.";
