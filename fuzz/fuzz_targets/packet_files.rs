//! Files of captured packets and key logs with hostile contents: opening them never panics, and every frame that is read is written.

#![no_main]

use apus_net::packet_file::{PacketReader, PacketWriter, open_file, read_keys};
use apus_seal::{AwsAead, LoggedKey};
use libfuzzer_sys::fuzz_target;

const KEY: &str =
    "APUS2 040000123456789a 0 1 1fca58a4f5965f6ae5edfb64290ba5bb b9f763ecbce6855a7ea37ca2\n";

fuzz_target!(|bytes: &[u8]| {
    let _ = read_keys::<AwsAead>(bytes);
    if let Ok(Some(key)) = str::from_utf8(bytes).map_or(Ok(None), LoggedKey::parse) {
        let again = LoggedKey::parse(&key.line()).unwrap().unwrap();
        assert_eq!(*again.line(), *key.line());
    }
    let mut keys = read_keys::<AwsAead>(KEY.as_bytes()).unwrap();
    let mut output = Vec::new();
    let opened = open_file(bytes, &mut keys, &mut output);
    assert!(output.len() <= 64 + 1_000 * bytes.len() || opened.is_err());
    // The bytes as one frame of each kind of link.
    for link_type in [0, 1, 101, 113, 276] {
        let mut writer = PacketWriter::new(Vec::new()).unwrap();
        let frame = apus_net::packet_file::Frame { link_type, time_ns: 1, original_len: 9, bytes };
        writer.frame(&frame).unwrap();
        let file = writer.finish().unwrap();
        let mut reader = PacketReader::new(&file[..]).unwrap();
        assert_eq!(reader.next_frame().unwrap(), Some(frame));
        let mut output = Vec::new();
        open_file(&file[..], &mut keys, &mut output).unwrap();
    }
});
