use apus_wire::PathId;
use crate::endpoint::Endpoint;
use crate::time::Time;
impl Endpoint {
    pub fn contact_failed(&mut self, _: Time, _: PathId) {}
    pub fn path_over(&mut self, _: Time, _: PathId) {}
}
