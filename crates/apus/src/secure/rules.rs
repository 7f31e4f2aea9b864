//! The rules of sockets, by number: the core compares bits, and no patterns.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use apus_proto::Rights;
use apus_seal::{Identity, Rule};

use crate::error::RuleError;
use crate::secure::node_identity::{NodeIdentity, Plain};

/// The number of the rule of handshakes, which everybody may begin.
pub(super) const HANDSHAKE: u8 = 63;
/// The number of the rule of sockets without one.
pub(super) const DEFAULT: u8 = 0;

const TOO_MANY: RuleError = RuleError::TooMany { limit: HANDSHAKE as usize - 1 };

/// The rules of an engine's sockets. Equal rules share a number, which is free again after its last socket.
#[derive(Default)]
pub(super) struct Rules {
    /// From number 1 on.
    numbered: Vec<Option<NumberedRule>>,
}

struct NumberedRule {
    rule: Rule,
    /// Number of sockets and settings that have it.
    users: u64,
}

impl Rules {
    /// Numbers the rules of a configuration, of which there are fewer than numbers.
    pub(super) fn of(allow: &BTreeMap<u16, Rule>) -> Self {
        let mut rules = Self::default();
        for rule in allow.values() {
            let numbered = rules.number(rule);
            debug_assert!(numbered.is_ok(), "the configuration was checked");
        }
        rules
    }

    /// Returns the number of a rule, which has a further user, and whether it is new.
    pub(super) fn number(&mut self, rule: &Rule) -> Result<(u8, bool), RuleError> {
        let known = self.place(rule);
        let free = || self.numbered.iter().position(Option::is_none);
        let index = known.or_else(free).unwrap_or(self.numbered.len());
        let number = u8::try_from(index + 1).ok().filter(|&number| number < HANDSHAKE);
        let number = number.ok_or(TOO_MANY)?;
        if index == self.numbered.len() {
            self.numbered.push(None);
        }
        let numbered = &mut self.numbered[index];
        numbered.get_or_insert_with(|| NumberedRule { rule: rule.clone(), users: 0 }).users += 1;
        Ok((number, known.is_none()))
    }

    fn place(&self, rule: &Rule) -> Option<usize> {
        let is_it =
            |known: &Option<NumberedRule>| known.as_ref().is_some_and(|it| it.rule == *rule);
        self.numbered.iter().position(is_it)
    }

    /// Returns whether a rule has a number.
    pub(super) fn has(&self, rule: &Rule) -> bool {
        self.place(rule).is_some()
    }

    /// Notes that a user of a number has ended. The default is always there.
    pub(super) fn release(&mut self, number: u8) {
        let index = usize::from(number).checked_sub(1);
        let Some(numbered) = index.and_then(|index| self.numbered.get_mut(index)) else { return };
        if let Some(rule) = numbered {
            rule.users -= 1;
            if rule.users == 0 {
                *numbered = None;
            }
        }
    }

    /// Returns the rule with a number; `None` for the default.
    pub(super) fn get(&self, number: u8) -> Option<&Rule> {
        Some(&self.numbered.get(usize::from(number).checked_sub(1)?)?.as_ref()?.rule)
    }

    //= docs/protocol.md#seal-6
    /// Returns the rights of a peer whose certificate was verified.
    pub(super) fn of_peer(
        &self,
        node: &NodeIdentity,
        address: SocketAddr,
        peer: &Identity,
    ) -> Rights {
        let named = self.admitting(Some(peer));
        let is_expected = node.expected_at(address).admits(Some(peer));
        let by_default = u64::from(Rule::of_service().admits(Some(peer)));
        Rights {
            requests: named | by_default | bit(HANDSHAKE),
            calls: named | u64::from(is_expected) | bit(HANDSHAKE),
        }
    }

    /// Returns the rights of nodes that send plain packets.
    pub(super) fn of_plain(&self, plain: Plain) -> Rights {
        let handshakes = bit(HANDSHAKE);
        match plain {
            Plain::Refuse => Rights { requests: handshakes, calls: handshakes },
            Plain::Accept => {
                let requests = self.admitting(None) | bit(DEFAULT) | handshakes;
                Rights { requests, calls: handshakes }
            }
            Plain::Use => {
                let requests = self.admitting(None) | bit(DEFAULT) | handshakes;
                Rights { requests, calls: u64::MAX }
            }
        }
    }

    //= docs/protocol.md#seal-17
    /// Returns the rights of nodes on native links, which are never sealed. The links take packets of plain peers only.
    pub(super) fn of_native(&self) -> Rights {
        let admitting = self.admitting(None) | bit(DEFAULT);
        Rights { requests: admitting, calls: admitting }
    }

    /// Returns the rights of a sealed path whose peer is not known.
    pub(super) const fn of_unknown() -> Rights {
        Rights { requests: bit(HANDSHAKE), calls: bit(HANDSHAKE) }
    }

    fn admitting(&self, peer: Option<&Identity>) -> u64 {
        let admits = |(index, numbered): (usize, &Option<NumberedRule>)| {
            let is_named = numbered.as_ref().is_some_and(|it| it.rule.admits(peer));
            u64::from(is_named) << (index + 1)
        };
        self.numbered.iter().enumerate().map(admits).sum()
    }
}

const fn bit(number: u8) -> u64 {
    1 << number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rules_share_a_number_and_there_are_at_most_62() {
        let mut rules = Rules::default();
        let rule = |number: usize| Rule::parse([&*format!("a{number}.example.org")]).unwrap();
        for number in 0..62 {
            assert_eq!(rules.number(&rule(number)).unwrap(), (number as u8 + 1, true));
        }
        assert_eq!(rules.number(&rule(61)).unwrap(), (62, false));
        assert!(matches!(rules.number(&rule(62)), Err(RuleError::TooMany { limit: 62 })));
        assert_eq!(rules.get(62), Some(&rule(61)));
        assert_eq!((rules.get(0), rules.get(63)), (None, None));
    }

    #[test]
    fn a_number_is_free_after_its_last_user() {
        let mut rules = Rules::default();
        let rule = |name| Rule::parse([name]).unwrap();
        let [one, two, three] = ["one.example.org", "two.example.org", "three.example.org"];
        assert_eq!(rules.number(&rule(one)).unwrap(), (1, true));
        assert_eq!(rules.number(&rule(two)).unwrap(), (2, true));
        assert_eq!(rules.number(&rule(one)).unwrap(), (1, false));
        rules.release(1);
        assert_eq!(rules.number(&rule(three)).unwrap(), (3, true));
        rules.release(1);
        assert_eq!(rules.get(1), None);
        assert_eq!(rules.number(&rule(three)).unwrap(), (3, false));
        assert_eq!(rules.number(&rule(one)).unwrap(), (1, true));
        [0, 62, 63, 255].into_iter().for_each(|number| rules.release(number));
        assert_eq!(rules.get(2), Some(&rule(two)));
    }
}
