//! Patterns, lists of denied peers, and certificates: a text that parses is written as it is read, and no bytes cause a panic.
#![no_main]

use std::time::Duration;

use apus_seal::{DeniedPeer, Identity, Name, Pattern, Rule};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(identity) = Identity::from_chain(vec![bytes.to_vec()], Duration::ZERO) {
        assert!(Pattern::Any.admits(Some(&identity)));
        assert!(Pattern::Name(identity.name.clone()).admits(Some(&identity)));
        assert_eq!(Name::parse(identity.name.as_str()), Ok(identity.name));
    }
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(pattern) = text.parse::<Pattern>() {
        assert_eq!(pattern.to_string().parse::<Pattern>(), Ok(pattern.clone()));
        if let Pattern::Name(name) = &pattern {
            let peer = Identity::named(name.clone());
            assert!(pattern.admits(Some(&peer)) && !pattern.admits(None));
        }
    }
    if let Ok(entry) = text.parse::<DeniedPeer>() {
        assert_eq!(entry.to_string().parse::<DeniedPeer>(), Ok(entry));
    }
    let _ = Rule::parse(text.split(','));
});
