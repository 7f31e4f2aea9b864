//! Work over all RPCs, done a few at a time.

use crate::endpoint::Endpoint;
use crate::endpoint::sweeps::Swept;
use crate::error::CallFailed;
use crate::rpc::Rpc;
use crate::slab::RpcKey;
use crate::time::Time;

/// Number of RPC slots that one step of a sweep examines.
const STEP: usize = 256;

impl Endpoint {
    /// Ends calls that waited for their peer in vain, and performs one step of the oldest sweep.
    #[inline]
    pub(super) fn sweep(&mut self, now: Time) {
        if !self.sweeps.is_empty() {
            self.sweep_some(now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep_some(&mut self, now: Time) {
        for (key, error) in self.sweeps.take_unsent() {
            self.fail(key, error);
        }
        let Some((swept, first)) = self.sweeps.advance(STEP) else { return };
        //= docs/protocol.md#server-5
        for slot in first..first + STEP {
            if let Some((key, rpc)) = self.rpcs.at(slot)
                && swept.has(rpc)
            {
                self.end_swept(now, key, &swept);
            }
        }
        if first + STEP >= self.rpcs.slots() {
            self.sweeps.pop();
        }
    }

    fn end_swept(&mut self, now: Time, key: RpcKey, swept: &Swept) {
        let is_client = self.rpcs.get(key).is_some_and(Rpc::is_client);
        match swept {
            Swept::Run(_, successor) => self.end_with_run(now, key, successor),
            &Swept::Failed(_, _, CallFailed::Unreachable { error, .. }) if is_client => {
                let sent = self.rpcs.get(key).is_some_and(Rpc::has_sent_request);
                self.fail(key, CallFailed::Unreachable { error, sent });
            }
            Swept::Failed(_, _, error) if is_client => self.fail(key, error.clone()),
            //= docs/protocol.md#linux-3
            Swept::Service(..) if is_client => self.fail(key, CallFailed::NoSuchPort),
            //= docs/protocol.md#life-8
            Swept::Socket(_) if is_client => {
                self.send_abort(key);
                self.remove_rpc(key);
            }
            _ => {
                self.remove_rpc(key);
            }
        }
    }
}
