//! The whole table: every state, every event, the reaction, and the next state.

use std::fmt::Write;

use expect_test::expect_file;

use super::*;
use crate::slab::Handle;

const NOW: Time = Time::from_nanos(100_000_000_000);
const SPACING: Duration = Duration::from_millis(1);
const PROOF: Proof = Proof { code: 1, issued: 1 };
const THEIRS: Credentials = Credentials { token: Token(1), proof: PROOF, compact: true };
const OTHER: Credentials = Credentials { token: Token(2), proof: PROOF, compact: true };

/// The key of another peer: the one in doubt, or the one that asks.
fn other_peer() -> PeerKey {
    PeerKey::new(7, 0)
}

fn opening() -> Opening {
    Opening::new(NOW, Header { source_port: 1, dest_port: 2, sender_id: RpcId(2) })
}

fn confirming_since(since: Time) -> Contact {
    let mut contact = Contact::Opening(opening());
    contact.confirm(since, THEIRS);
    contact
}

fn in_doubt(mut contact: Contact) -> Contact {
    contact.note_asking(Some(other_peer()));
    contact
}

/// Every state, with the age of a CONFIRM where that matters.
fn states() -> [Contact; 8] {
    let old = Time::from_nanos(94_000_000_000);
    [
        Contact::Opening(opening()),
        Contact::Asking(other_peer(), opening()),
        confirming_since(NOW),
        confirming_since(old),
        in_doubt(confirming_since(old)),
        Contact::Met(Met::confirmed(THEIRS.token)),
        in_doubt(Contact::Met(Met::confirmed(THEIRS.token))),
        Contact::Over,
    ]
}

fn show(contact: &Contact) -> String {
    let Some(met) = contact.met() else {
        return match contact {
            Contact::Opening(_) => "opening",
            Contact::Asking(..) => "asking",
            _ => "over",
        }
        .to_owned();
    };
    let state = match &met.confirming {
        Some(confirming) if confirming.is_fresh(NOW) => "confirming",
        Some(_) => "confirming for 6 s",
        None => "met",
    };
    let doubt = if met.asking.is_some() { ", in doubt" } else { "" };
    format!("{state}{doubt}")
}

fn words(act: Act) -> String {
    match act {
        Act::Ignore => "-",
        Act::DropToken => "drop: token",
        Act::DropProof => "drop: proof",
        Act::RefuseToken => "drop: token; RPC_UNKNOWN",
        Act::OfferSame => "TOKEN: the same token",
        Act::OfferNew => "TOKEN: a new token",
        Act::OfferAnother(_) => "drop: proof; TOKEN: a new token",
        Act::Begin(_) => "CONFIRM, waiting packets",
        Act::Confirm(_) => "CONFIRM",
        Act::ConfirmWithRequest(_) => "CONFIRM, request",
        Act::AskProof(_) => "TOKEN to the sender",
        Act::Move => "move",
        Act::Ask => "ask",
        Act::AskFor(_) => "ask for the call",
        Act::Answer(..) => "answer for the peer in doubt",
        Act::FailCall(_) | Act::FailConfirmed(_) => "fail the call",
        Act::FailVersion(None) => "fail all calls",
        Act::FailVersion(Some(_)) => "fail all calls of the peer in doubt",
        Act::NoteNoRoom => "mark the call",
    }
    .to_owned()
}

fn handle(contact: &mut Contact, event: Event) -> String {
    words(contact.handle(NOW, SPACING, event))
}

fn confirm(contact: &mut Contact, theirs: Credentials, proven: bool, moved: bool) -> String {
    handle(contact, Event::Confirm { theirs: theirs.token, proven, moved })
}

fn answered(contact: &mut Contact, token: Option<Token>) -> String {
    if contact.on_answer(token) { "trust" } else { "end" }.to_owned()
}

type Reaction = fn(&mut Contact) -> String;

/// All events, with their rules.
const EVENTS: [(&str, Reaction); 20] = [
    ("OPEN that names this node's token (contact-3)", |c| handle(c, Event::Open)),
    ("TOKEN with the peer's token (contact-4, contact-5, contact-7)", |c| {
        handle(c, Event::Token(THEIRS))
    }),
    ("TOKEN with another token (contact-5)", |c| handle(c, Event::Token(OTHER))),
    ("CONFIRM (contact-5)", |c| confirm(c, THEIRS, true, false)),
    ("CONFIRM from another address (contact-7)", |c| confirm(c, THEIRS, true, true)),
    ("CONFIRM with a proof that does not fit (contact-4)", |c| confirm(c, THEIRS, false, true)),
    ("CONFIRM with another token (contact-4)", |c| confirm(c, OTHER, true, false)),
    ("RPC_UNKNOWN, no contact (contact-3)", |c| {
        handle(c, Event::ContactRefused(UnknownReason::NoContact))
    }),
    ("RPC_UNKNOWN, not allowed, about an OPEN or a CONFIRM (seal-6)", |c| {
        handle(c, Event::ContactRefused(UnknownReason::ContactNotAllowed))
    }),
    ("RPC_UNKNOWN, other version, about an OPEN (contact-8)", |c| {
        handle(c, Event::ContactRefused(UnknownReason::OtherVersion))
    }),
    ("RPC_UNKNOWN, another reason (contact-1)", |c| {
        if c.receive() {
            return "take".to_owned();
        }
        handle(c, Event::ContactRefused(UnknownReason::Unknown))
    }),
    ("RPC_UNKNOWN, token unknown (contact-5)", |c| {
        handle(c, Event::TokenRefused(UnknownReason::TokenUnknown))
    }),
    ("RPC_UNKNOWN, other version, about a known token (contact-5)", |c| {
        handle(c, Event::TokenRefused(UnknownReason::OtherVersion))
    }),
    ("RPC_UNKNOWN, over budget (contact-4)", |c| {
        handle(c, Event::TokenRefused(UnknownReason::OverBudget))
    }),
    ("another packet (contact-1)", |c| {
        if c.receive() { "take".to_owned() } else { handle(c, Event::Packet) }
    }),
    ("another packet from another address (contact-7)", |c| handle(c, Event::Elsewhere)),
    ("the peer that asks has got the same token (contact-5)", |c| answered(c, Some(THEIRS.token))),
    ("the peer that asks has got another token, or the port is not served (contact-6)", |c| {
        answered(c, None)
    }),
    ("a call begins after a silence of 60 s (contact-6)", |c| {
        if c.may_be_doubted() { "ask" } else { "-" }.to_owned()
    }),
    ("calls by the path go to another peer (contact-6)", |c| {
        match c.on_path_taken(NOW) {
            PathTaken::Ends => "end",
            PathTaken::Doubts if c.may_be_doubted() => "ask",
            PathTaken::Doubts | PathTaken::Stays => "-",
        }
        .to_owned()
    }),
];

#[test]
fn every_transition_is_as_written() {
    let mut text = String::new();
    for (event, react) in EVENTS {
        writeln!(text, "{event}").unwrap();
        for mut contact in states() {
            let before = show(&contact);
            let reaction = react(&mut contact);
            writeln!(text, "  {before:<28} | {reaction:<34} | {}", show(&contact)).unwrap();
        }
        text.push('\n');
    }
    expect_file!["table.txt"].assert_eq(&text);
}

//= docs/protocol.md#contact-5
#[test]
fn a_token_that_comes_again_is_confirmed_once_in_the_spacing() {
    let mut contact = confirming_since(NOW);
    let times = [NOW, NOW, NOW + SPACING];
    let acts = times.map(|now| words(contact.handle(now, SPACING, Event::Token(THEIRS))));
    assert_eq!(acts, ["CONFIRM", "-", "CONFIRM"]);
}

//= docs/protocol.md#contact-5
#[test]
fn a_lost_confirm_is_repeated_with_the_request_once_and_at_growing_intervals_alone() {
    let mut contact = confirming_since(NOW);
    let refused = Event::TokenRefused(UnknownReason::TokenUnknown);
    let times = [0, 1, 2, 3, 5, 6].map(|spacings| NOW + SPACING * spacings);
    let acts = times.map(|now| words(contact.handle(now, SPACING, refused)));
    assert_eq!(acts, ["CONFIRM, request", "-", "CONFIRM", "-", "-", "CONFIRM"]);
}
