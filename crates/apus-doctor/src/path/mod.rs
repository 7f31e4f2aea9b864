//! The path to a peer: calls to its node, and datagrams to the doctor there.
//!
//! | file | contents |
//! |---|---|
//! | `calls` | calls to the node of the peer |
//! | `marks`, `packet` | the marks of packets on arrival; datagrams with marks |
//! | `service` | the other end of a path |

mod calls;
mod marks;
mod packet;
mod service;

use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, Result};
use apus::{Address, Config, Node};
use apus_load::misuse::Misuse;

use crate::finding::{Finding, Subject};
use calls::Calls;
use marks::Marks;
use service::PORT;

pub use service::Service;

/// The findings on the path to a peer. `flood` is the rate in Mb/s at which the path is loaded for a second; `None` for no load.
///
/// # Errors
/// When the address is not valid, a setting in the environment is wrong, or no node can be started here.
pub fn findings(peer: &str, flood: Option<u64>, config: &Config) -> Result<Vec<Finding>> {
    let to = address(peer)?;
    let found = calls::Reachability::probe(to, config);
    let mut findings = vec![found.finding()];
    if !found.is_there() {
        return Ok(findings);
    }
    let node = Node::start(config).context("cannot start a node")?;
    let client = node.client()?;
    if let Err(error) = client.connect(to).deadline(calls::CALL_MAX).wait() {
        let why = format!("the node at {to} does not answer calls: {error}");
        findings.push(Finding::not_known(Subject::Path, "round trip", why));
        return Ok(findings);
    }
    findings.extend(Calls::gather(&client, &node, to, config).findings());
    // Random enough that hosts off the path cannot guess it.
    let nonce = RandomState::new().hash_one(std::process::id());
    findings.extend(Marks::gather(&client, to, nonce, flood).findings());
    for finding in &mut findings {
        finding.change = finding.change.take().map(|command| command.replace("PEER", peer));
    }
    Ok(findings)
}

/// Parses the address of a peer, in the form of other commands or without a port.
fn address(text: &str) -> Result<Address> {
    let whole = match text.rsplit_once("://").map_or(text, |(_, rest)| rest) {
        rest if rest.contains(':') || rest.contains('@') => text.to_owned(),
        _ => format!("{text}:{PORT}"),
    };
    Ok(apus::resolve(&whole).map_err(|error| Misuse(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_be_left_out() {
        let shown = |text| address(text).unwrap().to_string();
        assert_eq!(shown("127.0.0.1"), shown("127.0.0.1:4000@20146"));
        assert_eq!(address("127.0.0.1:5@7").unwrap().host.port(), 7);
        assert!(address("a:b").unwrap_err().is::<Misuse>());
    }
}
