//! Sealed datagrams in the dissector: their clear fields, and their packets with a key log and a stand-in for `GcryptCipher`.

use std::fmt::Write as _;
use std::time::Duration;

use apus_seal::{
    Associations, AwsAead, CLEAR_LEN, Installation, LoggedKey, OVERHEAD, PathSecret, Role,
    SealLimits, Suite, TAG_LEN,
};
use apus_wire::PathId;

use super::*;

/// A datagram, the key that opens it, and its text.
struct Sealed {
    datagram: Vec<u8>,
    key: LoggedKey,
    text: Vec<u8>,
}

/// Seals packets: one with a header in the second part is sealed with the header behind the payload.
fn sealed(suite: Suite, packets: &[(Vec<u8>, Vec<u8>)]) -> Vec<Sealed> {
    let mut table = Associations::<AwsAead, u8>::new(3, SealLimits::default());
    let id = table.reserve(7).unwrap();
    table.log_keys();
    let (secret, lifetime) = (PathSecret::new([9; 32]), Duration::MAX);
    let (role, path, address, peer_id) = (Role::Server, PathId::new(0, 0), 0, id);
    let keys = Installation { secret, role, suite, peer_id, path, address, lifetime };
    table.install(Duration::ZERO, id, keys).unwrap();
    let mut key = None;
    let seal = |(payload, header): &(Vec<u8>, Vec<u8>)| {
        let text = [&payload[..], header].concat();
        let mut datagram = vec![0; OVERHEAD + text.len()];
        datagram[CLEAR_LEN..][..text.len()].copy_from_slice(&text);
        let level = Priority::HIGHEST;
        let (now, room) = (Duration::ZERO, &mut datagram[..]);
        match header.is_empty() {
            true => table.seal_in_place(now, id, level, room).unwrap(),
            false => table.seal_parts(now, id, level, payload, header, room).unwrap(),
        }
        key = key.take().or_else(|| table.poll_logged_key());
        Sealed { datagram, key: key.clone().unwrap(), text }
    };
    packets.iter().map(seal).collect()
}

/// A request as a packet, as a payload with its header behind, and twice in a bundle.
fn requests() -> Vec<(Vec<u8>, Vec<u8>)> {
    let request = |id| stamped(&data(client(id), REQUEST, 200));
    let split = request(4);
    let (header, payload) = split.split_at(DATA_HEADER_LEN);
    let mut whole = Vec::new();
    bundle::start(&mut whole);
    for id in [6, 8] {
        assert!(bundle::push(&mut whole, usize::MAX, &request(id), &[]));
    }
    vec![(request(2), Vec::new()), (payload.to_vec(), header.to_vec()), (whole, Vec::new())]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A file that is removed when dropped.
struct Text(PathBuf);

impl Text {
    fn new(name: &str, text: &str) -> Self {
        let path = env::temp_dir().join(format!("apus-wireshark-{}-{name}", process::id()));
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A script with a `GcryptCipher` that knows these datagrams only: it answers the right key, nonce, bytes and tag.
fn stand_in(sealed: &[Sealed], numbers: [u16; 2]) -> String {
    let entry = |it: &Sealed| {
        let (clear, rest) = it.datagram.split_at(CLEAR_LEN);
        let (bytes, tag) = rest.split_at(rest.len() - TAG_LEN);
        let bound = [&clear[..4], &clear[12..]].concat();
        let nonce: Vec<u8> = bound.iter().zip(it.key.key.iv()).map(|(a, b)| a ^ b).collect();
        let name = [it.key.key.key(), &nonce, bytes].map(hex).join(":");
        format!("[\"{name}\"] = {{ text = \"{}\", tag = \"{}\" }},\n", hex(&it.text), hex(tag))
    };
    let [algorithm, mode] = numbers;
    let known: String = sealed.iter().map(entry).collect();
    format!(
        "local known = {{ {known} }}
local cipher = {{}}
cipher.__index = cipher
_G.GCRY_CIPHER_AES128, _G.GCRY_CIPHER_AES256, _G.GCRY_CIPHER_CHACHA20 = 7, 9, 316
_G.GCRY_CIPHER_MODE_GCM, _G.GCRY_CIPHER_MODE_POLY1305 = 9, 10
_G.GcryptCipher = {{ open = function(algorithm, mode, flags)
    assert(algorithm == {algorithm} and mode == {mode} and flags == 0)
    return setmetatable({{}}, cipher)
end }}
function cipher:setkey(key) self.key = key:tohex():lower() end
function cipher:setiv(iv) self.iv = iv:tohex():lower() end
function cipher:decrypt(out, bytes)
    self.entry = known[self.key .. ':' .. self.iv .. ':' .. bytes:tohex():lower()]
    return ByteArray.new(self.entry and self.entry.text or '00')
end
function cipher:checktag(tag) return self.entry and self.entry.tag == tag:tohex():lower() and 0 or 10 end
"
    )
}

const ADDRESSES: [&str; 2] = ["10.0.0.1:20146", "10.0.0.2:20146"];

#[test]
fn sealed_datagrams_show_their_clear_fields() {
    let sealed = sealed(Suite::Aes128Gcm, &requests());
    let mut datagrams: Vec<Vec<u8>> = sealed.iter().map(|it| it.datagram.clone()).collect();
    let hint = [&[0, 0, 3, 0], &datagrams[0][4..CLEAR_LEN]].concat();
    datagrams.extend([hint, [&datagrams[0][..], &datagrams[0]].concat()]);
    let capture = Capture::new("clear", ADDRESSES, &datagrams);
    let fields =
        ["version", "path", "shard", "epoch", "lane", "priority", "counter", "header_words"];
    let fields = fields.map(|field| format!("apus.sealed.{field}"));
    let Some(text) = capture.fields(&fields.each_ref().map(String::as_str)) else { return };
    let path = "0x0c00000000000007";
    let expected = format!(
        "2|{path}|3|0|14|7|1|0
2|{path}|3|0|15|7|1|14
2|{path}|3|0|14|7|2|0
3|{path}|3|0|14|7|1|0
2,2|{path},{path}|3,3|0,0|14,14|7,7|1,1|0,0
"
    );
    assert_eq!(text, expected);
    assert_eq!(capture.matching("homa || _ws.malformed || _ws.expert.severity == error"), Some(0));
    assert_eq!(capture.matching("apus.expert.hint"), Some(1));
    assert_eq!(capture.matching("apus.expert.segmented && apus.segment.length == 292"), Some(1));
    let other_ports = ["10.0.0.1:7000", "10.0.0.2:7001"];
    let capture = Capture::new("ports", other_ports, &datagrams[..1]);
    let heuristic = ["-o", "udp.try_heuristic_first:TRUE", "-Y", "apus.sealed.path"];
    assert_eq!(capture.shown(&heuristic).map(|text| text.lines().count()), Some(1));
}

#[test]
fn malformed_sealed_datagrams_are_errors() {
    let whole = sealed(Suite::Aes128Gcm, &requests()).remove(0).datagram;
    let changed = |at: usize, byte: u8| {
        let mut datagram = whole.clone();
        datagram[at] = byte;
        datagram
    };
    let mut no_path = whole.clone();
    no_path[4..12].fill(0);
    let datagrams = [
        changed(3, 0x20),
        changed(3, 5),
        changed(3, 14),
        changed(12, 0xF0),
        changed(19, 0),
        no_path,
        whole[..63].to_vec(),
        whole[..3].to_vec(),
        [&[0, 0, 3, 0], &whole[4..21]].concat(),
    ];
    let capture = Capture::new("malformed-sealed", ADDRESSES, &datagrams);
    let Some(count) = capture.matching("apus.expert.malformed_sealed") else { return };
    assert_eq!(count, datagrams.len());
}

#[test]
fn with_keys_and_a_cipher_the_packets_are_shown() {
    let numbers = [[7, 9], [9, 9], [316, 10]];
    for (suite, numbers) in Suite::ALL.into_iter().zip(numbers) {
        let mut sealed = sealed(suite, &requests());
        let script = Text::new(&format!("cipher-{}.lua", suite as u8), &stand_in(&sealed, numbers));
        // A key of another path, and one of another epoch with the same bits, are no hindrance.
        let other = LoggedKey { epoch: 4, ..sealed[0].key.clone() };
        let lines = format!("# keys\n{}\n{}\n", *other.line(), *sealed[0].key.line());
        let log = Text::new(&format!("keys-{}", suite as u8), &lines);
        sealed[2].datagram[60] ^= 1; // Its tag does not fit.
        let datagrams: Vec<_> = sealed.iter().map(|it| it.datagram.clone()).collect();
        let capture = Capture::new(&format!("opened-{}", suite as u8), ADDRESSES, &datagrams);
        let first = ["-X", &format!("lua_script:{}", script.0.display())];
        let log = format!("apus.keylog:{}", log.0.display());
        let fields = ["homa.rpc.id", "homa.reassembled.length", "apus.expert.not_opened"];
        let fields = fields.iter().flat_map(|field| ["-e", field]);
        let arguments: Vec<&str> =
            ["-o", &log, "-T", "fields", "-E", "separator=|"].into_iter().chain(fields).collect();
        let Some(text) = capture.shown_after(&first, &arguments) else { return };
        assert_eq!(text, "2|200|\n4|200|\n||1\n");
    }
}

#[test]
fn with_keys_and_without_a_cipher_the_dissector_says_so() {
    let sealed = sealed(Suite::Aes128Gcm, &requests());
    let log = Text::new("keys", &format!("{}\n", *sealed[0].key.line()));
    let capture = Capture::new("no-cipher", ADDRESSES, &[sealed[0].datagram.clone()]);
    // Wireshark may have a cipher; then the packet is shown.
    let log = format!("apus.keylog:{}", log.0.display());
    let shown = capture.shown(&["-o", &log, "-Y", "apus.expert.no_cipher || homa.rpc.id == 2"]);
    assert!(shown.is_none_or(|text| text.lines().count() == 1));
}
