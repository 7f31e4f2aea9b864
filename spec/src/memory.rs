//! Calls through shared memory from node 0 to node 1, and their way over to UDP: rules local-3 to local-8.

use crate::contact::Step;
use crate::revert::Revert;
use crate::state::{End, Phase};

/// A message in memory, about a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Message {
    /// The request is there completely.
    Request(u8),
    /// The client has given the call up.
    Abort(u8),
    /// The response.
    Response(u8),
    /// The request is refused for the moment.
    Refused(u8),
}

/// Memory that two processes share. It neither loses, repeats nor reorders messages, and ends at each side by itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Memory {
    /// Whether node 0 and node 1 use it.
    pub is_open: [bool; 2],
    /// Messages that node 0 has not copied into memory completely.
    pub queue: Vec<Message>,
    /// Messages to node 1.
    pub ring: Vec<Message>,
    /// Messages to node 0.
    pub back: Vec<Message>,
    /// Requests in service at node 1, and whether they are cancelled.
    pub served: Vec<(u8, bool)>,
}

impl Memory {
    pub(crate) fn new(is_open: bool) -> Self {
        let (queue, ring) = (Vec::new(), Vec::new());
        Self { is_open: [is_open; 2], queue, ring, back: Vec::new(), served: Vec::new() }
    }

    /// Returns whether a request or its response is on its way, or the request is in service.
    pub(crate) fn has(&self, call: u8) -> bool {
        let mut messages = self.queue.iter().chain(&self.ring).chain(&self.back);
        messages.any(|it| [Message::Request(call), Message::Response(call)].contains(it))
            || self.served.iter().any(|&(served, _)| served == call)
    }
}

impl Step {
    pub(crate) fn begin_in_memory(&mut self, call: usize) {
        self.state.calls[call].phase = Phase::Queued;
        self.state.memory.queue.push(Message::Request(call as u8));
    }

    /// Returns the messages of the queue that may be in memory completely next. Short ones pass long ones, but an ABORT follows
    /// its request (local-5).
    pub(crate) fn may_carry(&self) -> Vec<usize> {
        let queue = &self.state.memory.queue;
        let overtakes = self.breaks(Revert::AbortOvertakes);
        let may = |message: &Message| match message {
            Message::Abort(call) => overtakes || !queue.contains(&Message::Request(*call)),
            _ => true,
        };
        (0..queue.len()).filter(|&index| may(&queue[index])).collect()
    }

    /// The last byte of a message is in memory.
    pub(crate) fn carry(&mut self, index: usize) {
        let put_off_for_good = self.breaks(Revert::PutOffForGood);
        let message = self.state.memory.queue.remove(index);
        self.state.memory.ring.push(message);
        if let Message::Request(call) = message {
            let phase = &mut self.state.calls[usize::from(call)].phase;
            if *phase == Phase::Queued || *phase == Phase::PutOff && !put_off_for_good {
                *phase = Phase::Carried;
            }
        }
    }

    /// A request that was refused for the moment is sent again (local-4).
    pub(crate) fn carry_again(&mut self, call: usize) {
        self.state.memory.queue.push(Message::Request(call as u8));
    }

    /// Node 1 reads the next message; `refuses`: it has no room for a request.
    pub(crate) fn read(&mut self, refuses: bool) {
        match self.state.memory.ring.remove(0) {
            Message::Request(call) if refuses => {
                self.state.memory.back.push(Message::Refused(call))
            }
            Message::Request(call) => {
                self.state.memory.served.push((call, false));
                self.execute(call);
            }
            Message::Abort(call) => {
                self.state.calls[usize::from(call)].is_aborted = true;
                let served = self.state.memory.served.iter_mut();
                served.filter(|it| it.0 == call).for_each(|it| it.1 = true);
            }
            Message::Response(_) | Message::Refused(_) => {}
        }
    }

    /// The application of node 1 answers. The response to a cancelled request is not sent.
    pub(crate) fn reply(&mut self, index: usize) {
        let (call, is_cancelled) = self.state.memory.served.remove(index);
        if !is_cancelled {
            self.state.memory.back.push(Message::Response(call));
        }
    }

    /// Node 0 reads the next message.
    pub(crate) fn fetch(&mut self) {
        let (call, is_response) = match self.state.memory.back.remove(0) {
            Message::Response(call) => (usize::from(call), true),
            Message::Refused(call) => (usize::from(call), false),
            Message::Request(_) | Message::Abort(_) => return,
        };
        match self.state.calls[call].phase {
            Phase::Carried | Phase::PutOff if is_response => self.end(call, End::Answered),
            Phase::Carried => self.state.calls[call].phase = Phase::PutOff,
            _ => {}
        }
    }

    pub(crate) fn give_up_in_memory(&mut self, call: usize) {
        self.end(call, End::GivenUp);
        self.state.memory.queue.push(Message::Abort(call as u8));
    }

    /// Memory ends at node 1: its requests are given up, and it reads nothing more.
    pub(crate) fn end_memory_at_server(&mut self) {
        let memory = &mut self.state.memory;
        memory.is_open[1] = false;
        memory.ring.clear();
        memory.served.clear();
    }

    /// Memory ends at node 0, which reads the messages that are there first. local-8: calls that node 1 cannot have executed
    /// begin again over UDP, and the others may have been executed.
    pub(crate) fn end_memory_at_client(&mut self) {
        while !self.state.memory.back.is_empty() {
            self.fetch();
        }
        self.state.memory.is_open[0] = false;
        self.state.memory.queue.clear();
        let place = self.state.nodes[1].place;
        self.forget_run(0, place);
        for call in 0..self.state.calls.len() {
            match self.state.calls[call].phase {
                Phase::Queued | Phase::PutOff => self.begin(call),
                Phase::Carried if self.breaks(Revert::CarriedBeginsAnew) => self.begin(call),
                Phase::Carried => self.end(call, End::MayHaveExecuted),
                _ => {}
            }
        }
    }
}
