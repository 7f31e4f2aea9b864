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

/// The number that stands for no identity, among those of identities.
pub(super) use crate::shared_engine::forwarder::NOBODY;

/// The rules of an engine's sockets. Equal ones of one identity share a number, which is free again after its last socket.
#[derive(Default)]
pub(super) struct Rules {
    /// From number 1 on.
    numbered: Vec<Option<NumberedRule>>,
}

struct NumberedRule {
    /// The identity of the sockets.
    local: u8,
    /// `None`: the default.
    rule: Option<Rule>,
    /// Number of sockets and settings that have it.
    users: u64,
}

impl Rules {
    /// Numbers the rules of a configuration, of which there are fewer than numbers, and the defaults of further identities.
    pub(super) fn of(allow: &BTreeMap<u16, Rule>, others: impl Iterator<Item = u8>) -> Self {
        let mut rules = Self::default();
        let configured = allow.values().map(|rule| (0, Some(rule)));
        for (local, rule) in configured.chain(others.map(|local| (local, None))) {
            let numbered = rules.number(local, rule);
            debug_assert!(numbered.is_ok(), "the configuration was checked");
        }
        rules
    }

    /// Returns the number of a rule, or of the default, for the sockets of an identity. It has a further user. Also returns whether it is
    /// new.
    pub(super) fn number(
        &mut self,
        local: u8,
        rule: Option<&Rule>,
    ) -> Result<(u8, bool), RuleError> {
        if (local, rule) == (0, None) {
            return Ok((DEFAULT, false));
        }
        let known = self.place(local, rule);
        let free = || self.numbered.iter().position(Option::is_none);
        let index = known.or_else(free).unwrap_or(self.numbered.len());
        let number = u8::try_from(index + 1).ok().filter(|&number| number < HANDSHAKE);
        let number = number.ok_or(TOO_MANY)?;
        if index == self.numbered.len() {
            self.numbered.push(None);
        }
        let new = || NumberedRule { local, rule: rule.cloned(), users: 0 };
        self.numbered[index].get_or_insert_with(new).users += 1;
        Ok((number, known.is_none()))
    }

    /// Returns the number of rules.
    pub(super) fn len(&self) -> usize {
        self.each().count()
    }

    fn place(&self, local: u8, rule: Option<&Rule>) -> Option<usize> {
        let is_it = |known: &Option<NumberedRule>| {
            known.as_ref().is_some_and(|it| it.local == local && it.rule.as_ref() == rule)
        };
        self.numbered.iter().position(is_it)
    }

    /// Returns whether a rule of an identity has a number.
    pub(super) fn has(&self, local: u8, rule: &Rule) -> bool {
        self.place(local, Some(rule)).is_some()
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

    fn numbered(&self, number: u8) -> Option<&NumberedRule> {
        self.numbered.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    /// Returns the rule with a number; `None` for a default.
    pub(super) fn get(&self, number: u8) -> Option<&Rule> {
        self.numbered(number)?.rule.as_ref()
    }

    //= docs/protocol.md#seal-6
    /// Returns the rights of a peer whose certificate was verified, on a path of an identity of this node. Sockets of other identities are
    /// out of its reach.
    pub(super) fn of_peer(
        &self,
        (local, node): (u8, &NodeIdentity),
        address: SocketAddr,
        peer: &Identity,
    ) -> Rights {
        let expects = node.expected_at(address).admits(Some(peer));
        let admits = Rule::of_service().admits(Some(peer));
        let own = self.each().filter(|(_, numbered)| numbered.local == local);
        let mut rights = Self::of_unknown();
        for (bit, numbered) in own {
            let [requests, calls] = match &numbered.rule {
                Some(rule) => [rule.admits(Some(peer)); 2],
                None => [admits, expects],
            };
            rights.requests |= if requests { bit } else { 0 };
            rights.calls |= if calls { bit } else { 0 };
        }
        //= docs/protocol.md#seal-18
        if local == 0 {
            rights.requests |= u64::from(admits) << DEFAULT;
            rights.calls |= u64::from(expects) << DEFAULT;
        }
        rights
    }

    /// Returns the rights of nodes that send plain packets. `is_open`: sockets without an identity speak plain with everybody.
    pub(super) fn of_plain(&self, plain: Plain, is_open: bool) -> Rights {
        let handshakes = bit(HANDSHAKE);
        let nobody = self.each().filter(|(_, it)| is_open && it.local == NOBODY);
        let open = nobody.fold(0, |bits, (bit, _)| bits | bit);
        let requests = self.admitting_plain() | handshakes;
        let rights = match plain {
            Plain::Refuse => Rights { requests: handshakes, calls: handshakes },
            Plain::Accept => Rights { requests, calls: handshakes },
            Plain::Use => Rights { requests, calls: self.but_nobody() },
        };
        Rights { requests: rights.requests | open, calls: rights.calls | open }
    }

    //= docs/protocol.md#seal-17
    /// Returns the rights of nodes on native links, which are never sealed. The links take packets of plain peers only.
    pub(super) fn of_native(&self) -> Rights {
        let admitting = self.admitting_plain();
        Rights { requests: admitting, calls: admitting }
    }

    /// Returns the rights of a sealed path whose peer is not known.
    pub(super) const fn of_unknown() -> Rights {
        Rights { requests: bit(HANDSHAKE), calls: bit(HANDSHAKE) }
    }

    fn each(&self) -> impl Iterator<Item = (u64, &NumberedRule)> {
        let numbered = self.numbered.iter().enumerate();
        numbered.filter_map(|(index, it)| Some((1 << (index + 1), it.as_ref()?)))
    }

    /// Returns the rules that admit peers without a certificate, and the defaults of identities.
    fn admitting_plain(&self) -> u64 {
        let admits = |it: &NumberedRule| match &it.rule {
            Some(rule) => rule.admits(None),
            None => it.local != NOBODY,
        };
        let admitting = self.each().filter(|(_, it)| admits(it));
        admitting.fold(bit(DEFAULT), |bits, (bit, _)| bits | bit)
    }

    /// Returns all rules except those of sockets without an identity.
    fn but_nobody(&self) -> u64 {
        let nobody = self.each().filter(|(_, it)| it.local == NOBODY);
        nobody.fold(u64::MAX, |bits, (bit, _)| bits & !bit)
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
            assert_eq!(rules.number(0, Some(&rule(number))).unwrap(), (number as u8 + 1, true));
        }
        assert_eq!(rules.number(0, Some(&rule(61))).unwrap(), (62, false));
        assert!(matches!(rules.number(0, Some(&rule(62))), Err(RuleError::TooMany { limit: 62 })));
        assert_eq!(rules.get(62), Some(&rule(61)));
        assert_eq!((rules.get(0), rules.get(63)), (None, None));
    }

    //= docs/protocol.md#seal-18
    #[test]
    fn a_rule_belongs_to_one_identity() {
        let allow = BTreeMap::from([(7, Rule::parse(["plain"]).unwrap())]);
        let mut rules = Rules::of(&allow, [1, 2, NOBODY].into_iter());
        assert_eq!(rules.number(0, None).unwrap(), (DEFAULT, false));
        assert_eq!([1, 2, NOBODY].map(|local| rules.number(local, None).unwrap().0), [2, 3, 4]);
        let rule = Rule::parse(["kv.example.org"]).unwrap();
        assert_eq!([1, 2, 1].map(|local| rules.number(local, Some(&rule)).unwrap().0), [5, 6, 5]);
        assert!(rules.has(1, &rule) && !rules.has(0, &rule));
        assert_eq!((rules.get(2), rules.get(6)), (None, Some(&rule)));
        let rights = |plain, is_open| {
            let Rights { requests, calls } = rules.of_plain(plain, is_open);
            [requests, calls].map(|bits| bits & !bit(HANDSHAKE))
        };
        assert_eq!(rights(Plain::Refuse, false), [0, 0]);
        assert_eq!(rights(Plain::Refuse, true), [1 << 4, 1 << 4], "sockets without an identity");
        assert_eq!(rights(Plain::Accept, false), [0b1111, 0]);
        assert_eq!(rights(Plain::Use, false), [0b1111, !bit(HANDSHAKE) & !(1 << 4)]);
        assert_eq!(rules.of_native().calls, 0b1111);
    }

    #[test]
    fn a_number_is_free_after_its_last_user() {
        let mut rules = Rules::default();
        let rule = |name| Rule::parse([name]).unwrap();
        let [one, two, three] = ["one.example.org", "two.example.org", "three.example.org"];
        assert_eq!(rules.number(0, Some(&rule(one))).unwrap(), (1, true));
        assert_eq!(rules.number(0, Some(&rule(two))).unwrap(), (2, true));
        assert_eq!(rules.number(0, Some(&rule(one))).unwrap(), (1, false));
        rules.release(1);
        assert_eq!(rules.number(0, Some(&rule(three))).unwrap(), (3, true));
        rules.release(1);
        assert_eq!(rules.get(1), None);
        assert_eq!(rules.number(0, Some(&rule(three))).unwrap(), (3, false));
        assert_eq!(rules.number(0, Some(&rule(one))).unwrap(), (1, true));
        [0, 62, 63, 255].into_iter().for_each(|number| rules.release(number));
        assert_eq!(rules.get(2), Some(&rule(two)));
    }
}
