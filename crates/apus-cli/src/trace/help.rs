//! Examples and explanations that `--help` of analyses ends with.

pub(super) const COPY: &str = "Example:
  apus trace copy client.4711.trace

To the kernel: from the first packet of a burst that the core has made until the link has flushed it, with the system calls. Out of \
the link: from the first packet that the core takes apart to the end of the batch, without the system call. Only bursts of 10,000 bytes \
or more count of which nearly all packets are recorded, as with APUS_TRACE_CALLS=all.";

pub(super) const DELAY: &str = "Examples:
  apus trace delay client.4711.trace server.4712.trace
  apus trace delay --json - *.trace

The stages of a packet: xmit, when the core gives it to the link; flush, when the system call that sends it has ended; receipt, when the \
core of its receiver takes it apart; batch end, when all packets that the link gave with it are handled. Packets that were asked for \
again are left out.";

pub(super) const P99SHORT: &str = "Example:
  apus trace p99short client.4711.trace server.4712.trace

A call is slow because of the stage whose time exceeds its median by most. The stages are those of `apus trace timeline`, and the cause \
is before the stage that is named. Give the traces of both ends, with APUS_TRACE_CALLS=all if the calls are few.";

pub(super) const LOST: &str = "Example:
  apus trace lost client.4711.trace server.4712.trace

A packet is lost if its receiver's trace goes on for longer than any packet took, and does not have it. Otherwise, and where the \
receiver has no trace, it is not known.";

pub(super) const GRANTS: &str = "Example:
  apus trace grants --interval 100 client.4711.trace server.4712.trace

Unreceived: bytes that the receiver of a message has granted and does not have. Unsent: bytes that its sender may send and has not sent. \
Only messages longer than the unscheduled limit have grants.";

pub(super) const LOCKS: &str = "Example:
  apus trace locks client.4711.trace

A wait is recorded when a thread does not get the lock at once. The thread that probably had it is the other thread of the process that \
recorded last before the wait ended.";

pub(super) const PASS: &str = "Example:
  apus trace pass --length 1000 sim.trace

Counted are pairs of packets on their way to the same node, one of a short message and one of a longer one. Where priorities work, the \
short packets overtake the long ones.";

pub(super) const HANDOFFS: &str = "Example:
  apus trace handoffs client.4711.trace server.4712.trace

Same thread: the thread that takes the message is the one that took its last packet apart. Woken thread: it slept when the message \
was complete.";

pub(super) const OOO: &str = "Example:
  apus trace ooo client.4711.trace server.4712.trace

A packet is late by the time since later bytes of its message came. Packets that were asked for again are counted apart.";

pub(super) const SOCKQS: &str = "Example:
  apus trace sockqs client.4711.trace server.4712.trace

The port is known of calls whose client's trace is given.";

pub(super) const INCOMING: &str = "Example:
  apus trace incoming --interval 100 server.4712.trace

All datagrams of the link count, also those of calls that are not recorded. A simulation has packets of DATA instead.";

pub(super) const NET: &str = "Example:
  apus trace net --interval 100 client.4711.trace server.4712.trace

Bytes of DATA are on their way from the moment in which the core gives them to the link until its receiver takes them apart. Bytes \
that do not arrive are left out.";

pub(super) const ACTIVITY: &str = "Example:
  apus trace activity --interval 100 client.4711.trace server.4712.trace

Calls and bytes are those that are recorded: of one call in 64, unless APUS_TRACE_CALLS says otherwise.";

pub(super) const LONGTERM: &str = "Example:
  apus trace longterm --interval 100000 client.4711.trace

Calls count in the interval in which they began. The oldest is that call whose end is later than the interval.";

pub(super) const TPUT: &str = "Example:
  apus trace tput --length 1000000 client.4711.trace server.4712.trace

The time of a message is from its first transmission until it is complete.";

pub(super) const SUM: &str = "Example:
  apus trace sum client.4711.trace

The time of an event is that since the record before it of the same thread.";

pub(super) const RTT: &str = "Example:
  apus trace rtt --length 500 client.4711.trace

A call is short if its request and its response are.";

pub(super) const MINLATENCY: &str = "Example:
  apus trace minlatency client.4711.trace server.4712.trace

Of two hosts, the clocks are set so that the least time is the same in both directions; only the sum is measured.";

pub(super) const PAIRS: &str = "Example:
  apus trace pairs client.4711.trace server.4712.trace

The time beyond the least is that in queues: of the sender's link, the network, the kernel and the receiver's engine.";

pub(super) const SNAPSHOT: &str = "Example:
  apus trace snapshot --at 1500 client.4711.trace server.4712.trace

Outgoing: messages with bytes that were not sent yet. Incoming: messages of which bytes had arrived, and others had not.";
