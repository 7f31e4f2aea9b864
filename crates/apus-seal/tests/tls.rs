//! Handshakes by rustls, with certificates that are made for each test.

mod certificates;
mod pair;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apus_seal::frame::FailReason;
use apus_seal::{
    Alert, Associations, AwsAead, CLEAR_LEN, Denied, HandshakeError, Identity, Installation, Name,
    Pattern, Refresh, Role, SealLimits, TAG_LEN, Tls, TlsConfig, TlsError, TlsSession, Trust,
};
use apus_wire::{PathId, Priority};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection, SignatureScheme,
};
use zeroize::Zeroizing;

use certificates::{Ca, Clock, Leaf, NOW, Pem, clock};
use pair::{Outcome, fingerprint, offer, run, shake};

const CLIENT: &str = "spiffe://example.org/front/1";
const SERVER: &str = "spiffe://example.org/kv/1";

fn address() -> IpAddr {
    IpAddr::from([10, 0, 0, 2])
}

fn trust(ca: &Ca) -> Trust {
    let mut trust = Trust::new();
    trust.add_roots(&ca.pem()).expect("a root");
    trust
}

fn config(pem: &Pem, trust: Trust) -> TlsConfig {
    TlsConfig::new(pem.chain.as_bytes(), pem.key.as_bytes(), trust.into(), clock())
        .expect("a configuration")
}

/// Runs a handshake between two nodes.
fn meet(client: &TlsConfig, server: &TlsConfig) -> Outcome {
    shake(client_session(client), server.server_session().expect("a session"))
}

fn client_session(config: &TlsConfig) -> TlsSession {
    config.client_session(None, address()).expect("a session")
}

/// Two nodes of one authority.
fn nodes() -> (TlsConfig, TlsConfig) {
    let ca = Ca::root("Example CA");
    (config(&ca.leaf(&[CLIENT]), trust(&ca)), config(&ca.leaf(&[SERVER]), trust(&ca)))
}

/// Returns the alert and view of the side that refuses, which is the client or the server.
fn refusal(outcome: Outcome, refuses: Role) -> TlsError {
    let (client, server) = outcome.expect_none();
    let (ours, theirs) = match refuses {
        Role::Client => (client, server),
        Role::Server => (server, client),
    };
    let HandshakeError::Tls(ours) = ours else { panic!("{ours}") };
    assert!(!ours.from_peer, "{ours}");
    match theirs {
        HandshakeError::Tls(theirs) => {
            assert_eq!((theirs.alert, theirs.from_peer), (ours.alert, true))
        }
        HandshakeError::Refused(fail) => {
            assert_eq!((fail.reason, fail.alert), (FailReason::Tls, ours.alert.0));
            assert!(ours.to_string().starts_with(&fail.text), "{ours}, {}", fail.text);
        }
        other => panic!("{other}"),
    }
    ours
}

/// Lets a peer with these certificates meet a node as client and as server. Both are refused with the same alert and view.
fn refused(peer: &Pem, peer_trust: Trust, node: &TlsConfig) -> TlsError {
    let peer = config(peer, peer_trust);
    let as_client = refusal(meet(&peer, node), Role::Server);
    let as_server = refusal(meet(node, &peer), Role::Client);
    assert_eq!(as_client, as_server);
    as_client
}

//= docs/protocol.md#seal-5
#[test]
fn two_nodes_of_one_authority_meet() {
    let (client, server) = nodes();
    assert_eq!(client.identity().expect("its own").name.as_str(), CLIENT);
    let outcome = meet(&client, &server);
    let lengths: Vec<usize> = outcome.frames.iter().map(Vec::len).collect();
    assert!(lengths[0] > 1_184, "X25519MLKEM768 comes first: {lengths:?}");
    assert!(lengths.iter().max() < Some(&2_920), "two packets of 1,500 bytes: {lengths:?}");
    let (client, server) = outcome.expect_path();
    assert_eq!((client.peer.name.as_str(), server.peer.name.as_str()), (SERVER, CLIENT));
    assert_eq!(
        (server.peer.issuer.as_str(), &server.peer.serial[..]),
        ("Example CA", &[3, 232][..])
    );
    assert_eq!(server.peer.not_before, Duration::from_secs(1_735_689_600));
    assert_eq!(server.peer.not_after, Duration::from_secs(1_798_761_600));
}

//= docs/protocol.md#seal-2
#[test]
fn datagrams_pass_between_nodes_that_have_met() {
    const ADDRESS: u8 = 9;
    let (client, server) = nodes();
    let (client, server) = meet(&client, &server).expect_path();
    let [mut client, mut server] = [client, server].map(|met| {
        let mut table =
            Associations::<AwsAead, u8>::new(met.ours.id.shard(), SealLimits::default());
        assert_eq!(table.reserve(met.ours.id.to_bits()), Some(met.ours.id));
        let installation = Installation {
            secret: met.secret,
            role: met.role,
            suite: met.suite,
            peer_id: met.theirs.id,
            path: PathId::new(0, 1),
            address: ADDRESS,
            lifetime: met.peer.not_after - NOW,
        };
        assert!(
            table
                .install(Duration::ZERO, met.ours.id, installation)
                .is_some_and(|kept| kept.is_empty())
        );
        (table, met.ours.id)
    });
    let packet = [0x11; 28];
    let mut datagram = [&[0; CLEAR_LEN][..], &packet, &[0; TAG_LEN]].concat();
    let level = Priority::new(7).expect("a level");
    client.0.seal_in_place(Duration::ZERO, client.1, level, &mut datagram).expect("keys");
    let admitted = server.0.admit(ADDRESS, &mut datagram).expect("the id is known");
    let opened = admitted.open_in_place(Duration::ZERO).expect("the same keys");
    assert_eq!(opened.parts().0, packet);
}

#[test]
fn the_server_sees_the_dns_name_that_it_was_found_by_and_no_address() {
    let (client, server) = nodes();
    let hello = |name: Option<&str>| {
        let name = name.map(|name| Name::parse(name).expect("a name"));
        let session = client.client_session(name.as_ref(), address()).expect("a session");
        let outcome = shake(session, server.server_session().expect("a session"));
        let hello = outcome.frames[0].clone();
        outcome.expect_path();
        hello
    };
    let contains = |hello: &[u8], text: &[u8]| hello.windows(text.len()).any(|part| part == text);
    assert!(contains(&hello(Some("kv.example.org")), b"kv.example.org"));
    let (with, without) = (hello(Some("kv.example.org")), hello(None));
    assert!(with.len() > without.len() && !contains(&without, b"10.0.0.2"));
    assert!(!contains(&hello(Some(SERVER)), b"example.org"), "a SPIFFE id is no DNS name");
}

#[test]
fn each_handshake_has_another_secret() {
    let (client, server) = nodes();
    let secret = || fingerprint(&meet(&client, &server).expect_path().0);
    assert_ne!(secret(), secret());
}

#[test]
fn the_chain_may_have_intermediates_and_ends_with_the_first_of_them() {
    let root = Ca::root("Example CA");
    let intermediate = root.intermediate("Example CA 2", 2035).intermediate("Example CA 3", 2027);
    let long = Leaf { years: (2025, 2030), ..Leaf::new(&[SERVER]) };
    let server = config(&intermediate.issue(&long), trust(&root));
    let client = config(&root.leaf(&[CLIENT]), trust(&root));
    let (client, _) = meet(&client, &server).expect_path();
    assert_eq!(client.peer.issuer, "Example CA 3");
    assert_eq!(client.peer.not_after, Duration::from_secs(1_798_761_600), "of the intermediate");
}

//= docs/wire.md#W52
#[test]
fn a_changed_clear_field_gives_no_path() {
    let (client, server) = nodes();
    for (frame, length) in [(0, 39), (1, 36)] {
        for place in 0..length {
            let mut change = |index: usize, body: &mut Vec<u8>| {
                if index == frame {
                    body[place] ^= 0x40;
                }
            };
            let server = server.server_session().expect("a session");
            let outcome = run(offer(), None, client_session(&client), server, &mut change);
            assert!(
                outcome.client.is_err() && outcome.server.is_err(),
                "frame {frame}, byte {place}"
            );
        }
    }
}

#[test]
fn changed_records_of_tls_give_no_path() {
    let (client, server) = nodes();
    for frame in 0..3 {
        for place in (28..2_000).step_by(37) {
            let mut is_changed = false;
            let mut change = |index: usize, body: &mut Vec<u8>| {
                let skipped = [39, 36, 28][frame];
                if index == frame && place >= skipped && place < body.len() {
                    body[place] ^= 1;
                    is_changed = true;
                }
            };
            let server = server.server_session().expect("a session");
            let outcome = run(offer(), None, client_session(&client), server, &mut change);
            assert_eq!(outcome.client.is_err(), is_changed, "frame {frame}, byte {place}");
            assert_eq!(outcome.server.is_err(), is_changed, "frame {frame}, byte {place}");
        }
    }
}

//= docs/protocol.md#seal-7
#[test]
fn a_path_is_refreshed_for_the_same_name() {
    let ca = Ca::root("Example CA");
    let client = config(&ca.leaf(&[CLIENT]), trust(&ca));
    let kv = |name| config(&ca.leaf(&[name]), trust(&ca));
    let (of_client, of_server) = meet(&client, &kv(SERVER)).expect_path();
    let before = fingerprint(&of_client);
    let refresh = |server: &TlsConfig| {
        let of = |introduction: &apus_seal::Introduction| {
            Some(Refresh {
                salts: vec![introduction.secret.refresh_salt()],
                peer: introduction.peer.name.clone(),
            })
        };
        let offer = apus_seal::ClientOffer { refresh: of(&of_client), ..offer() };
        let session = server.server_session().expect("a session");
        run(offer, of(&of_server), client_session(&client), session, &mut |_, _| {})
    };
    let (after, _) = refresh(&kv(SERVER)).expect_path();
    assert_ne!(fingerprint(&after), before);
    let other = refresh(&kv("spiffe://example.org/kv/2"));
    assert!(matches!(other.client, Err(HandshakeError::NameChanged { .. })));
    assert!(other.server.is_err());
}

//= docs/protocol.md#seal-5
#[test]
fn certificates_outside_their_time_are_refused_with_both_times() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    for (years, time) in [((2024, 2025), "1735689600"), ((2027, 2028), "1798761600")] {
        let leaf = ca.issue(&Leaf { years, ..Leaf::new(&[CLIENT]) });
        let error = refused(&leaf, trust(&ca), &node);
        assert_eq!(error.alert, Alert(45));
        assert!(error.view.contains(time) && error.view.contains("1767225600"), "{error}");
    }
}

//= docs/protocol.md#seal-5
#[test]
fn certificates_of_another_authority_are_refused() {
    let (ca, other) = (Ca::root("Example CA"), Ca::root("Other CA"));
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    assert_eq!(refused(&other.leaf(&[CLIENT]), trust(&ca), &node).alert, Alert(48));
    // The same name of the authority does not help.
    let forged = Ca::root("Example CA");
    let error = refused(&forged.leaf(&[CLIENT]), trust(&ca), &node);
    assert_ne!(error.alert, Alert::INTERNAL_ERROR, "{error}");
}

//= docs/protocol.md#seal-5
#[test]
fn a_trust_domain_is_vouched_for_by_its_own_roots_alone() {
    let (example, partner) = (Ca::root("Example CA"), Ca::root("Partner CA"));
    let mut both = trust(&example);
    both.add_domain("partner.net", &partner.pem()).expect("a domain");
    let node = config(&example.leaf(&[SERVER]), both);

    let theirs = partner.leaf(&["spiffe://partner.net/db", "kv.example.org", "10.0.0.2"]);
    let (peer, _) = meet(&node, &config(&theirs, trust(&example))).expect_path();
    assert_eq!(peer.peer.name.as_str(), "spiffe://partner.net/db");
    assert!(peer.peer.dns_names.is_empty() && peer.peer.addresses.is_empty(), "not of its domain");

    let judge = |trust: &Trust| trust.judge(&peer.peer, Role::Server, NOW);
    let general = judge(&trust(&partner)).expect("general roots now");
    assert_eq!(general.dns_names.len(), 1, "the general roots vouch for it");
    let mut denying = trust(&partner);
    denying.add_domain("partner.net", &partner.pem()).expect("a domain");
    denying.deny(Denied::parse(["kv.example.org"]).expect("an entry"));
    assert!(judge(&denying).is_err(), "a denied name counts in any case");

    for forged in [
        partner.leaf(&["spiffe://example.org/kv/1"]),
        partner.leaf(&["kv.example.org"]),
        example.leaf(&["spiffe://partner.net/db"]),
    ] {
        assert_eq!(refused(&forged, trust(&example), &node).alert, Alert(48));
    }
}

//= docs/protocol.md#seal-5
#[test]
fn a_certificate_has_one_uri_at_most_and_a_name() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    for (names, view) in [
        (&["spiffe://example.org/a", "spiffe://example.org/b"][..], "has 2 URIs"),
        (&["spiffe://example.org//a", "a.example.org"], "is not a name"),
        (&["*.example.org"], "neither a SPIFFE id nor a DNS name"),
        (&["10.0.0.2"], "neither a SPIFFE id nor a DNS name"),
    ] {
        let leaf = ca.leaf(names);
        let error =
            TlsConfig::new(leaf.chain.as_bytes(), leaf.key.as_bytes(), trust(&ca).into(), clock());
        let error = error.map(|_| ()).expect_err("the node has no name").to_string();
        assert!(error.starts_with("cert: ") && error.contains(view), "{error}");
        let (client, server) = own_configs(&leaf, &ca, PLAIN_GROUPS);
        let peer = TlsConfig::from_rustls(client, server).expect("rustls needs no name");
        let error = refusal(meet(&peer, &node), Role::Server);
        assert!(error.view.contains(view), "{error}");
        assert!(refusal(meet(&node, &peer), Role::Client).view.contains(view));
    }
}

//= docs/protocol.md#seal-5
#[test]
fn a_name_is_the_spiffe_id_or_the_first_dns_name() {
    let ca = Ca::root("Example CA");
    let client = config(&ca.leaf(&[CLIENT]), trust(&ca));
    let peer = |names: &[&str]| {
        let server = config(&ca.leaf(names), trust(&ca));
        let (client, _) = meet(&client, &server).expect_path();
        Arc::unwrap_or_clone(client.peer)
    };
    let kv = peer(&["*.example.org", "KV1.example.org", "kv.example.org", "10.0.0.2", "::1"]);
    assert_eq!(kv.name.as_str(), "kv1.example.org");
    let admits = |pattern: &str, peer: &Identity| {
        pattern.parse::<Pattern>().expect("one").admits(Some(peer))
    };
    assert!(
        ["kv1.example.org", "kv.example.org", "*.example.org", "10.0.0.2", "::1", "any"]
            .iter()
            .all(|pattern| admits(pattern, &kv))
    );
    assert!(
        !["example.org", "a.example.org", "10.0.0.3", "plain"]
            .iter()
            .any(|pattern| admits(pattern, &kv))
    );
    let kv = peer(&["kv.example.org", SERVER]);
    assert_eq!(kv.name.as_str(), SERVER);
    assert!(admits("spiffe://example.org/kv/*", &kv) && admits("kv.example.org", &kv));
    assert_eq!(
        peer(&["kv.example.org", "https://example.org/about"]).name.as_str(),
        "kv.example.org"
    );
}

#[test]
fn identities_have_the_names_that_webpki_verifies() {
    let ca = Ca::root("Example CA");
    let pem =
        ca.leaf(&[SERVER, "kv.example.org", "*.example.org", "a_b.example.org", "10.0.0.2", "x"]);
    let der = CertificateDer::from_pem_slice(pem.chain.as_bytes()).expect("PEM");
    let identity = Identity::from_chain(vec![der.to_vec()], NOW).expect("an identity");
    let verified = webpki::EndEntityCert::try_from(&der).expect("a certificate");
    let dns_names: Vec<&str> =
        verified.valid_dns_names().filter(|name| !name.contains('*')).collect();
    assert_eq!(identity.dns_names.iter().map(Name::as_str).collect::<Vec<_>>(), dns_names);
    assert_eq!(verified.valid_uri_names().collect::<Vec<_>>(), [identity.name.as_str()]);
    assert_eq!(identity.serial, verified.serial());
    let address = ServerName::from(identity.addresses[0]);
    assert!(verified.verify_is_valid_for_subject_name(&address).is_ok());
    for length in 0..der.len() {
        assert!(Identity::from_chain(vec![der[..length].to_vec()], NOW).is_err());
    }
}

//= docs/protocol.md#seal-11
#[test]
fn revoked_certificates_are_refused() {
    let ca = Ca::root("Example CA");
    let with_list = |list: &[u8]| {
        let mut trust = trust(&ca);
        trust.add_revocation_lists(list).expect("a list");
        trust
    };
    let peer = ca.issue(&Leaf { serial: 7, ..Leaf::new(&[CLIENT]) });
    let node = |list: &[u8]| config(&ca.leaf(&[SERVER]), with_list(list));
    let revoked = refused(&peer, trust(&ca), &node(&ca.revoke(&[7], 2027)));
    assert_eq!(revoked.alert, Alert(44));
    meet(&config(&peer, trust(&ca)), &node(&ca.revoke(&[8], 2027))).expect_path();

    let expired = refused(&peer, trust(&ca), &node(&ca.revoke(&[8], 2026)));
    assert!(expired.view.contains("revocation list expired"), "{expired}");
    let missing = refused(&peer, trust(&ca), &node(&Ca::root("Other CA").revoke(&[], 2027)));
    assert!(missing.view.contains("UnknownRevocationStatus"), "{missing}");
}

//= docs/protocol.md#seal-11
#[test]
fn a_peer_is_judged_again_after_a_reload() {
    let ca = Ca::root("Example CA");
    let client = config(&ca.leaf(&[CLIENT]), trust(&ca));
    let (introduction, _) = meet(&client, &config(&ca.leaf(&[SERVER]), trust(&ca))).expect_path();
    let judge = |trust: &Trust, now| trust.judge(&introduction.peer, Role::Server, now);
    assert_eq!(judge(&trust(&ca), NOW).as_ref(), Ok(&*introduction.peer));
    let year = Duration::from_secs(366 * 24 * 3_600);
    assert_eq!(judge(&trust(&ca), NOW + year).map_err(|error| error.alert), Err(Alert(45)));
    let other = trust(&Ca::root("Other CA"));
    assert_eq!(judge(&other, NOW).map_err(|error| error.alert), Err(Alert(48)));
    let mut with_list = trust(&ca);
    with_list.add_revocation_lists(&ca.revoke(&[1_000], 2027)).expect("a list");
    assert_eq!(judge(&with_list, NOW).map_err(|error| error.alert), Err(Alert(44)));
    for entry in ["spiffe://example.org/kv/*", "serial:03E8@Example CA"] {
        let mut denying = trust(&ca);
        denying.deny(Denied::parse([entry]).expect("an entry"));
        let error = judge(&denying, NOW).expect_err("the peer is denied");
        assert!(error.view.contains(&format!("denied by the entry {entry}")), "{error}");
    }
}

//= docs/protocol.md#seal-11
#[test]
fn a_denied_peer_is_refused() {
    let ca = Ca::root("Example CA");
    let mut denying = trust(&ca);
    denying.deny(Denied::parse([CLIENT]).expect("an entry"));
    let node = config(&ca.leaf(&[SERVER]), denying);
    let error = refused(&ca.leaf(&[CLIENT]), trust(&ca), &node);
    assert!(error.view.contains("is denied by the entry spiffe://example.org/front/1"), "{error}");
}

#[test]
fn a_certificate_serves_for_the_uses_that_it_names() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let peer = config(&ca.issue(&Leaf { usages, ..Leaf::new(&[CLIENT]) }), trust(&ca));
    meet(&node, &peer).expect_path();
    assert_eq!(refusal(meet(&peer, &node), Role::Server).alert, Alert(43));
}

const PLAIN_GROUPS: &[&dyn SupportedKxGroup] = &[kx_group::X25519];

fn own_configs(
    pem: &Pem,
    ca: &Ca,
    groups: &[&'static dyn SupportedKxGroup],
) -> (ClientConfig, ServerConfig) {
    let provider =
        Arc::new(CryptoProvider { kx_groups: groups.to_vec(), ..aws_lc_rs::default_provider() });
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem.chain.as_bytes()).map(|c| c.expect("PEM")).collect();
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("a key");
    let server = ServerConfig::builder_with_details(Arc::clone(&provider), clock())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_client_cert_verifier(Arc::new(trust(ca)))
        .with_single_cert(chain.clone(), key.clone_key())
        .expect("a key");
    let client = ClientConfig::builder_with_details(provider, clock())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust(ca)))
        .with_client_auth_cert(chain, key)
        .expect("a key");
    (client, server)
}

/// Nodes of the program's own configurations with these groups.
fn own_nodes(
    client: &[&'static dyn SupportedKxGroup],
    server: &[&'static dyn SupportedKxGroup],
) -> (TlsConfig, TlsConfig) {
    let ca = Ca::root("Example CA");
    let node = |name, groups| {
        let (client, server) = own_configs(&ca.leaf(&[name]), &ca, groups);
        TlsConfig::from_rustls(client, server).expect("a configuration")
    };
    (node(CLIENT, client), node(SERVER, server))
}

#[test]
fn nodes_without_post_quantum_groups_meet_by_x25519() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    let (own_client, own_server) = own_configs(&ca.leaf(&[CLIENT]), &ca, PLAIN_GROUPS);
    let own = TlsConfig::from_rustls(own_client, own_server).expect("a configuration");
    let outcome = meet(&own, &node);
    assert!(outcome.frames[0].len() < 400, "{}", outcome.frames[0].len());
    outcome.expect_path();
    meet(&node, &own).expect_path();
}

#[test]
fn a_server_with_another_group_asks_for_it() {
    const GROUPS: &[&dyn SupportedKxGroup] = &[kx_group::X25519MLKEM768, kx_group::SECP256R1];
    let (client, server) = own_nodes(GROUPS, &[kx_group::SECP256R1]);
    let outcome = meet(&client, &server);
    assert_eq!(outcome.frames.len(), 6, "a HelloRetryRequest is one more call");
    outcome.expect_path();
    let (client, server) = own_nodes(PLAIN_GROUPS, &[kx_group::SECP256R1]);
    assert_eq!(refusal(meet(&client, &server), Role::Server).alert, Alert::HANDSHAKE_FAILURE);
}

/// A client that is asked for a certificate and has none.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_client_without_certificate_is_refused() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    let (mut client, server) = own_configs(&ca.leaf(&[CLIENT]), &ca, PLAIN_GROUPS);
    client.client_auth_cert_resolver = Arc::new(NoCertificate);
    let client = TlsConfig::from_rustls(client, server).expect("the resolver claims to have one");
    let error = refusal(meet(&client, &node), Role::Server);
    assert_eq!(error.alert, Alert::CERTIFICATE_REQUIRED);

    let (client, server) = own_configs(&ca.leaf(&[CLIENT]), &ca, PLAIN_GROUPS);
    let client = ClientConfig::builder_with_provider(Arc::clone(client.crypto_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust(&ca)))
        .with_no_client_auth();
    let error = TlsConfig::from_rustls(client, server).map(|_| ()).expect_err("no certificate");
    assert_eq!(error.to_string(), "rustls: the client's configuration has no certificate");
}

#[test]
fn a_server_that_asks_for_no_certificate_takes_no_client() {
    let ca = Ca::root("Example CA");
    let (client, server) = own_configs(&ca.leaf(&[SERVER]), &ca, PLAIN_GROUPS);
    let pem = ca.leaf(&[SERVER]);
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(pem.chain.as_bytes()).map(|c| c.expect("PEM")).collect();
    let lax = ServerConfig::builder_with_details(Arc::clone(server.crypto_provider()), clock())
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).expect("a key"))
        .expect("a key");
    let lax = TlsConfig::from_rustls(client, lax).expect("rustls does not show it");
    let node = config(&ca.leaf(&[CLIENT]), trust(&ca));
    let (_, error) = meet(&node, &lax).expect_none();
    let HandshakeError::Tls(error) = error else { panic!("{error}") };
    assert_eq!(error.alert, Alert::CERTIFICATE_REQUIRED);
}

/// A peer that runs TLS 1.3 with any application protocol and checks nothing.
struct Careless(Connection);

impl Tls for Careless {
    fn read(&mut self, mut records: &[u8]) -> Result<(), TlsError> {
        self.0.read_tls(&mut records).expect("there is room");
        self.0.process_new_packets().map(|_| ()).map_err(|error| TlsError {
            alert: Alert::INTERNAL_ERROR,
            from_peer: true,
            view: error.to_string(),
        })
    }

    fn write(&mut self, records: &mut Vec<u8>) {
        while self.0.wants_write() {
            self.0.write_tls(records).expect("a vector takes all bytes");
        }
    }

    fn is_complete(&self) -> bool {
        !self.0.is_handshaking()
    }

    fn export(&mut self, _: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, TlsError> {
        Ok(Zeroizing::new([0; 32]))
    }

    fn peer(&self) -> Result<Arc<Identity>, TlsError> {
        Ok(Arc::new(Identity::named(Name::parse(SERVER).expect("a name"))))
    }
}

#[test]
fn a_peer_with_another_application_protocol_or_none_is_refused() {
    let ca = Ca::root("Example CA");
    let node = config(&ca.leaf(&[SERVER]), trust(&ca));
    for protocols in [&[][..], &[b"h2".to_vec()]] {
        let (mut client, mut server) = own_configs(&ca.leaf(&[CLIENT]), &ca, PLAIN_GROUPS);
        client.alpn_protocols = protocols.to_vec();
        server.alpn_protocols = protocols.to_vec();
        let name = ServerName::from(address());
        let client = ClientConnection::new(Arc::new(client), name).expect("a session");
        let as_client: Box<dyn Tls> = Box::new(Careless(client.into()));
        let outcome = shake(as_client, Box::new(node.server_session().expect("a session")));
        let error = outcome.server.expect_err("apus/2 is missing");
        assert!(
            matches!(&error, HandshakeError::Tls(error) if error.alert == Alert(120)),
            "{error}"
        );

        let server = ServerConnection::new(Arc::new(server)).expect("a session");
        let as_server: Box<dyn Tls> = Box::new(Careless(server.into()));
        let client: Box<dyn Tls> = Box::new(client_session(&node));
        let outcome = shake(client, as_server);
        match outcome.client.expect_err("apus/2 is missing") {
            HandshakeError::Tls(error) => assert_eq!(error.alert, Alert(120)),
            HandshakeError::Refused(fail) => {
                assert!(fail.text.contains("protocol"), "{}", fail.text)
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn tls_1_2_is_refused() {
    let random = [0x55; 32];
    let hello = [
        &[0x03, 0x03][..],
        &random,
        // No session, one suite, no compression, the group X25519, and ECDSA with P-256.
        &[0, 0, 2, 0xc0, 0x2b, 1, 0, 0, 16, 0, 10, 0, 4, 0, 2, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3],
    ]
    .concat();
    let length = u8::try_from(hello.len()).expect("short");
    let record = [&[0x16, 3, 1, 0, length + 4, 1, 0, 0, length], &hello[..]].concat();
    let (client, server) = nodes();
    let server = server.server_session().expect("a session");
    let outcome = run(offer(), None, client_session(&client), server, &mut |frame, body| {
        if frame == 0 {
            body.truncate(39);
            body.extend_from_slice(&record);
        }
    });
    let (client, error) = outcome.expect_none();
    let HandshakeError::Tls(error) = error else { panic!("{error}") };
    assert_eq!(error.alert, Alert::PROTOCOL_VERSION, "{error}");
    assert!(client.to_string().contains("protocol_version"), "{client}");
}

#[test]
fn unusable_files_are_named() {
    let ca = Ca::root("Example CA");
    let (one, other) = (ca.leaf(&[CLIENT]), ca.leaf(&[SERVER]));
    let error = |chain: &str, key: &str| {
        let config = TlsConfig::new(chain.as_bytes(), key.as_bytes(), trust(&ca).into(), clock());
        config.map(|_| ()).expect_err("unusable").to_string()
    };
    assert_eq!(error("", &one.key), "cert: no section \"-----BEGIN CERTIFICATE-----\" in 0 bytes");
    assert!(error(&one.chain, "").starts_with("key: "));
    assert!(
        error(&one.chain, &other.key).starts_with("key: "),
        "{}",
        error(&one.chain, &other.key)
    );
    let mut trust = Trust::new();
    let roots = trust.add_roots(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let error = roots.map(|_| ()).expect_err("malformed").to_string();
    assert!(error.starts_with("ca: certificate 1: "), "{error}");
    let domain = trust.add_domain("Example.org", &ca.pem()).map(|_| ()).expect_err("upper case");
    assert!(
        domain.to_string().starts_with("trust: domain \"Example.org\" is not a trust domain: ")
    );
    assert!(trust.add_revocation_lists(b"0abc").is_err());
    assert!(trust.add_revocation_lists(b"").is_err());
}

#[test]
fn the_clock_of_certificates_is_an_input() {
    let ca = Ca::root("Example CA");
    let pem = ca.leaf(&[SERVER]);
    let late = Arc::new(Clock(NOW + Duration::from_secs(366 * 24 * 3_600)));
    let late = TlsConfig::new(pem.chain.as_bytes(), pem.key.as_bytes(), trust(&ca).into(), late);
    let late = late.expect("a configuration");
    let node = config(&ca.leaf(&[CLIENT]), trust(&ca));
    assert_eq!(
        refusal(meet(&node, &late), Role::Server).alert,
        Alert(45),
        "by the clock of the late one"
    );
}
