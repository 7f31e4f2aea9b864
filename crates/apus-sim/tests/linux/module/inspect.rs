//! Checks that the module could have sent a packet.

use super::format::{Kind, u16_at, u32_at, u64_at};

/// Checks a packet field by field. Stricter than the module, which accepts many packets that it would not send. Allows the two
/// intended deviations of Apus: an explicit segment offset in first transmissions, and GRANTs of 34 bytes for older modules.
///
/// # Errors
///
/// The field that differs, with the module's value.
pub(crate) fn inspect(packet: &[u8]) -> Result<(), String> {
    let same = |what: &str, is: u64, should: u64| match is == should {
        true => Ok(()),
        false => Err(format!("{what} is {is:#x}, not {should:#x}")),
    };
    if packet.len() < 28 {
        return Err(format!("{} bytes", packet.len()));
    }
    let kind = Kind::of(packet[11]).ok_or_else(|| format!("type {:#x}", packet[11]))?;
    if u16_at(packet, 0) == 0 || (u16_at(packet, 2) == 0 && kind != Kind::Freeze) {
        return Err("port 0".to_owned());
    }
    same("bytes 8 to 10", u64::from(u32_at(packet, 8) >> 8), 0)?;
    same("header words", packet[12].into(), if kind == Kind::Data { 0xE0 } else { 0x50 })?;
    same("flags", packet[13].into(), 0x06)?;
    same("window", u16_at(packet, 14).into(), 0)?;
    same("urgent pointer", u16_at(packet, 18).into(), 0xB97D)?;
    if kind == Kind::Data {
        return inspect_data(packet);
    }
    same("sequence", u32_at(packet, 4).into(), 0)?;
    let length = match kind {
        Kind::Grant if packet.len() == 34 => 34,
        _ => kind.least(false),
    };
    same("length", packet.len() as u64, length as u64)?;
    match kind {
        Kind::Grant => {
            same("byte 33", packet.get(33).copied().unwrap_or(0).into(), 0)?;
            priority(packet[32])
        }
        Kind::Resend => {
            let length = u32_at(packet, 32);
            if length == 0 || (length as i32) < -1 {
                return Err(format!("RESEND of {} bytes", length as i32));
            }
            priority(packet[36])
        }
        Kind::Ack => inspect_ack(packet),
        _ => Ok(()),
    }
}

fn priority(level: u8) -> Result<(), String> {
    if level < 8 { Ok(()) } else { Err(format!("priority {level}")) }
}

fn inspect_data(packet: &[u8]) -> Result<(), String> {
    let payload = packet.len().checked_sub(56).filter(|&payload| payload > 0);
    let payload = payload.ok_or_else(|| format!("DATA of {} bytes", packet.len()))? as u64;
    let [length, incoming, sequence, segment] =
        [28, 32, 4, 52].map(|at| u64::from(u32_at(packet, at)));
    if !(1..=1_000_000).contains(&length) {
        return Err(format!("message of {length} bytes"));
    }
    if segment != u64::from(u32::MAX) && segment != sequence {
        return Err(format!("sequence {sequence} and segment offset {segment}"));
    }
    if sequence + payload > length {
        return Err(format!("{payload} bytes at {sequence} of {length}"));
    }
    if incoming > length {
        return Err(format!("incoming {incoming} of {length}"));
    }
    if packet[48] > 1 || packet[49..52] != [0; 3] {
        return Err(format!("retransmit and padding are {:?}", &packet[48..52]));
    }
    match (u64_at(packet, 36), u16_at(packet, 44)) {
        (0, 0) => Ok(()),
        (id, port) if id & 1 == 0 && port != 0 => Ok(()),
        (id, port) => Err(format!("acknowledges {id} of port {port}")),
    }
}

fn inspect_ack(packet: &[u8]) -> Result<(), String> {
    if u64_at(packet, 20) & 1 != 0 {
        return Err("an ACK of a server".to_owned());
    }
    let count = usize::from(u16_at(packet, 28));
    if count > 5 {
        return Err(format!("{count} acknowledgements"));
    }
    for (place, entry) in packet[30..80].chunks(10).enumerate() {
        let (id, port) = (u64_at(entry, 0), u16_at(entry, 8));
        let fits =
            if place < count { id & 1 == 0 && id != 0 && port != 0 } else { (id, port) == (0, 0) };
        if !fits {
            return Err(format!("entry {place} of {count} is {id} of port {port}"));
        }
    }
    Ok(())
}
