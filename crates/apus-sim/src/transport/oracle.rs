//! Shortest remaining processing time with full knowledge: a lower bound.
//!
//! The network is one big switch whose only limits are the hosts' links. The message with the least left is sent if its sender and
//! its receiver are free, then the next, at full rate. The choice is made again whenever a message begins or has been sent
//! ("Ideal" in pFabric, SIGCOMM 2013 section 5.1). The rest of a message's least time, for switches and software, passes in
//! addition. No packet is simulated: `packet_hops` stays 0.

use std::collections::BTreeSet;

use crate::fabric::Fabric;
use crate::framing::{Framing, Ideal};
use crate::transport::{Message, Transport};

/// The choice number of timers that end a message.
const ARRIVAL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Job {
    message: Message,
    /// Remaining time on a link, in ps.
    left: u64,
    /// The rest of the least time, in ps.
    fixed_delay_ps: u64,
}

pub(crate) struct Oracle {
    jobs: Vec<Option<Job>>,
    /// Waiting messages by remaining time, then number.
    waiting: BTreeSet<(u64, u32)>,
    /// Messages that are being sent since `since`.
    active: Vec<u32>,
    since: u64,
    /// Number of the current choice, which invalidates timers of earlier choices.
    choice: u32,
    sending: Vec<bool>,
    receiving: Vec<bool>,
    picos_per_byte: u64,
    framing: Framing,
    ideal: Ideal,
}

impl Oracle {
    pub(crate) fn new(hosts: usize, host_gbps: u64, framing: Framing, ideal: Ideal) -> Self {
        Self {
            jobs: Vec::new(),
            waiting: BTreeSet::new(),
            active: Vec::new(),
            since: 0,
            choice: 0,
            sending: vec![false; hosts],
            receiving: vec![false; hosts],
            picos_per_byte: 8_000 / host_gbps.max(1),
            framing,
            ideal,
        }
    }

    /// Subtracts the time since the last choice from the active messages, then chooses again.
    fn choose(&mut self, fabric: &mut Fabric<()>) {
        let elapsed = fabric.now - self.since;
        self.since = fabric.now;
        for number in std::mem::take(&mut self.active) {
            let job = self.jobs[number as usize].as_mut().expect("active messages exist");
            self.waiting.remove(&(job.left, number));
            job.left = job.left.saturating_sub(elapsed);
            if job.left == 0 {
                fabric.timer(fabric.now + job.fixed_delay_ps, number, ARRIVAL);
            } else {
                self.waiting.insert((job.left, number));
            }
        }
        self.sending.fill(false);
        self.receiving.fill(false);
        let mut next = u64::MAX;
        let mut free = self.sending.len();
        for &(left, number) in &self.waiting {
            let Message { from, to, .. } =
                self.jobs[number as usize].as_ref().expect("waiting messages exist").message;
            if self.sending[from as usize] || self.receiving[to as usize] {
                continue;
            }
            self.sending[from as usize] = true;
            self.receiving[to as usize] = true;
            self.active.push(number);
            next = next.min(left);
            free -= 1;
            if free == 0 {
                break;
            }
        }
        self.choice = (self.choice + 1) % ARRIVAL;
        if next < u64::MAX {
            fabric.timer(fabric.now + next, 0, self.choice);
        }
    }
}

impl Transport for Oracle {
    type Header = ();

    fn start(&mut self, fabric: &mut Fabric<()>, message: Message) {
        let way = fabric.graph.kind_of_way(message.from, message.to);
        let left = self.framing.message_wire(message.bytes) * self.picos_per_byte;
        let fixed_delay_ps = self.ideal.picos(way, message.bytes) - left;
        let number = message.number as usize;
        if number >= self.jobs.len() {
            self.jobs.resize(number + 1, None);
        }
        self.jobs[number] = Some(Job { message, left, fixed_delay_ps });
        self.waiting.insert((left, message.number));
        self.choose(fabric);
    }

    fn receive(&mut self, _: &mut Fabric<()>, _: u32, _: u32) {}

    fn nic_free(&mut self, _: &mut Fabric<()>, _: u32) {}

    fn timer(&mut self, fabric: &mut Fabric<()>, number: u32, subject: u32) {
        if subject == ARRIVAL {
            self.jobs[number as usize] = None;
            fabric.finished.push(number);
            fabric.retired.push(number);
        } else if subject == self.choice {
            self.choose(fabric);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
